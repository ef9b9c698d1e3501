# SPDX-License-Identifier: Apache-2.0
"""Slack tables: in and out of spaces, owned and attached, and from one run of an engine to the next."""
import os
import stat
import threading
import time
import unittest
from unittest import mock

import tenuto
from case import LAYERS, Case, main
from tenuto import slack

TABLE = f"""tenuto-slack 3
model -
gpu some gpu
engine test
when 2026-11-27
how profiled
layers {LAYERS}
cells layered
inputs 128 1024
prefixes 0 4096
""" + ''.join(f'cell {i} {p} {layer} {i * 1000 + p + layer} 8 3\n' for layer in range(LAYERS) for p in (0, 4096) for i in (128, 1024))


def compute(space, pool, keys, tokens=4096):
    """A load with the waits of an engine that computes 2 ms on each layer: what a space learns from."""
    with space.load(keys, pool, range(4, 8), input_tokens=tokens) as load:
        for layer in range(LAYERS):
            load.wait(layer)
            time.sleep(0.002)


class Texts(Case):
    def test_a_table_comes_back_as_it_was_given(self):
        space = self.raw(self.open())[0]
        self.assertEqual(space.slack(), '')
        self.assertIsNone(space.slack(TABLE))
        self.assertEqual(space.slack(), TABLE)
        self.assertEqual(space.slack(None), TABLE)

    def test_what_a_space_has_learned_is_a_table(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        for _ in range(20):
            compute(space, pool, keys)
        text = space.slack()
        self.assertRegex(text, f'tenuto-slack [0-9]+\nmodel -\n(.*\n)*how learned\nlayers {LAYERS}\n')
        other = self.raw(cache, model='other')[0]
        self.assertEqual(other.slack(), '')
        other.slack(text)
        self.assertEqual(other.slack(), text)

    def test_a_bad_text_is_refused_with_line_and_cause(self):
        space = self.raw(self.open())[0]
        space.slack(TABLE)
        for text, error in (('', 'tenuto-slack'), ('tenuto-slack 2\nmodel -\ncells some\n', 'line 3: .*some'), (TABLE.replace(' 1 128001 8 3\n', ' 1 0 8 3\n'), 'line 15: "0" is not a time from 1 to'),
                            (TABLE[:-10], 'line 26'), (TABLE.replace(f'layers {LAYERS}', 'layers 9').replace('layered', 'shared'), 'line 11: "0"'),
                            (TABLE.replace('model -', 'model other'), 'table of other, but the space\'s model is toy: .*model line.*--name'),
                            (TABLE.replace('tenuto-slack 3', 'tenuto-slack 999'), '999'), ('\0' * 100, 'line 1'), ('tenuto-slack 2\nmodel \udcff\n', '')):
            with self.subTest(text=text[:40]), self.assertRaisesRegex(ValueError, error):
                space.slack(text)
        five = '\n'.join(line for line in TABLE.replace(f'layers {LAYERS}', f'layers {LAYERS - 1}').split('\n') if f' {LAYERS - 1} ' not in line[8:])
        with self.assertRaisesRegex(ValueError, f'{LAYERS - 1} layers, the space has {LAYERS}'):
            space.slack(five)
        for wrong in (b'x', 1, ['x']):
            with self.assertRaises(TypeError):
                space.slack(wrong)
        self.assertEqual(space.slack(), TABLE)
        space.close()
        for call in ((), (TABLE,)):
            with self.assertRaises(tenuto.Closed):
                space.slack(*call)

    def test_a_part_of_a_prefix_is_worth_it_only_where_it_is_clearly_faster(self):
        for part, restored, computed, kept in ((79, 100, 200, 3), (79, 200, 100, 3), (81, 100, 200, 8), (81, 200, 100, 0), (100, 100, 100, 8), (0, 0, 0, 3)):
            with self.subTest(part=part, restored=restored, computed=computed):
                plan = {'restore_blocks': 3, 'ttft_ns': part, 'restore_all_ttft_ns': restored, 'recompute_all_ttft_ns': computed}
                self.assertEqual(slack.worth(plan, 8), kept)

    def test_a_part_that_is_too_small_is_all_or_none(self):
        for least, restored, computed, kept in ((3, 200, 100, 3), (4, 200, 100, 0), (4, 100, 200, 8)):
            with self.subTest(least=least, restored=restored):
                plan = {'restore_blocks': 3, 'ttft_ns': 50, 'restore_all_ttft_ns': restored, 'recompute_all_ttft_ns': computed}
                self.assertEqual(slack.worth(plan, 8, least), kept)

    def test_all_processes_share_the_table_of_an_attached_space(self):
        owner = self.open()
        self.raw(owner)
        owner.serve(os.path.join(self.dir, 'socket'))
        first, second = (tenuto.attach(os.path.join(self.dir, 'socket')) for _ in range(2))
        self.addCleanup(second.close)
        self.addCleanup(first.close)
        space, other = (self.raw(c)[0] for c in (first, second))
        others = self.raw(second, tenant='somebody')[0]
        self.assertEqual(space.slack(), '')
        space.slack(TABLE)
        self.assertEqual([s.slack() for s in (space, other, others)], [TABLE, TABLE, ''])
        with self.assertRaisesRegex(ValueError, 'line 1'):
            space.slack('no table')
        self.assertEqual(other.slack(), TABLE)

    def test_a_session_that_only_reads_sets_none(self):
        owner = self.open()
        space = self.raw(owner)[0]
        owner.serve(os.path.join(self.dir, 'socket'), [{'uid': os.getuid(), 'read_only': True}])
        reader = tenuto.attach(os.path.join(self.dir, 'socket'))
        self.addCleanup(reader.close)
        readers = self.raw(reader)[0]
        with self.assertRaisesRegex(tenuto.Error, 'read'):
            readers.slack(TABLE)
        self.assertEqual(space.slack(), '')
        path = os.path.join(self.dir, 'table')
        with open(path, 'w', encoding='utf-8') as file:
            file.write(TABLE)
        with self.assertLogs('tenuto', 'INFO') as log:
            slack.Setting(path).restore(readers, 'toy')
        self.assertRegex(' '.join(log.output), '^WARNING.*ignored: [^ ]* *.*read')
        tables = slack.Tables(self.dir)
        space.slack(TABLE)
        tables.keep(space, 'toy')
        self.assertEqual(readers.slack(), TABLE)


class Files(Case):
    def setUp(self):
        super().setUp()
        self.where = os.path.join(self.dir, 'a', 'slack')
        self.tables = slack.Tables(self.where)

    def space(self, model='toy', **identity):
        return self.raw(self.open(instance=f'i{len(self._cleanups)}'), model=model, **identity)[0]

    def test_the_second_start_has_the_table_of_the_first(self):
        first, second = self.space(), self.space()
        with self.assertLogs('tenuto', 'INFO') as log:
            self.assertIsNone(self.tables.restore(first, 'toy bf16'))
            self.assertIsNone(self.tables.keep(first, 'toy bf16'))
            self.assertFalse(os.path.exists(self.where))
            first.slack(TABLE)
            path = self.tables.keep(first, 'toy bf16')
            self.assertEqual(slack.Tables(self.where).restore(second, 'toy bf16'), path)
        self.assertEqual([r.getMessage() for r in log.records], [f'slack table: {path} (new)', f'slack table: {path} (restored)'])
        self.assertEqual(second.slack(), TABLE)
        self.assertTrue(os.path.basename(path).startswith('toy-bf16-'))
        self.assertEqual([stat.S_IMODE(os.stat(p).st_mode) for p in (path, self.where)], [0o600, 0o700])
        self.assertEqual(os.listdir(self.where), [os.path.basename(path)])

    def test_another_model_dtype_or_machine_has_another_table(self):
        first = self.space()
        first.slack(TABLE)
        names = [slack.fingerprint('hf', *what) for what in (('m', 'bf16', 4), ('n', 'bf16', 4), ('m', 'fp16', 4))]
        self.tables.keep(first, names[0])
        other = self.space()
        with self.assertLogs('tenuto', 'INFO'):
            for name in names[1:]:
                self.assertIsNone(self.tables.restore(other, name))
            for what in ('_cpu', '_gpu'):
                with mock.patch.object(slack, what, lambda: 'another'):
                    self.assertIsNone(self.tables.restore(other, names[0]))
            with mock.patch.object(os, 'sched_getaffinity', lambda pid: range(999)):
                self.assertIsNone(self.tables.restore(other, names[0]))
            self.assertEqual(other.slack(), '')
            self.assertIsNotNone(self.tables.restore(other, names[0]))

    def test_a_space_that_knows_something_is_left_as_it_is(self):
        space, text = self.space(), TABLE.replace('some gpu', 'another gpu')
        space.slack(TABLE)
        self.tables.keep(space, 'toy')
        space.slack(text)
        with self.assertLogs('tenuto', 'INFO') as log:
            self.assertIsNone(self.tables.restore(space, 'toy'))
        self.assertIn('not read', log.output[0])
        self.assertEqual(space.slack(), text)

    def test_a_broken_file_is_one_warning(self):
        space = self.space()
        path = self.tables.path('toy')
        os.makedirs(self.where)
        for broken in (TABLE[:-30], TABLE.replace('model -', 'model other'), '\0\xff', ''):
            with open(path, 'w', encoding='latin-1') as file:
                file.write(broken)
            with self.subTest(broken=broken[:20]), self.assertLogs('tenuto', 'INFO') as log:
                self.assertIsNone(self.tables.restore(space, 'toy'))
            self.assertEqual(len(log.records), 1)
            self.assertRegex(log.output[0], f'WARNING.*{path} .ignored: ')
        self.assertEqual(space.slack(), '')

    def test_a_file_that_cannot_be_written_is_one_warning(self):
        space = self.space()
        space.slack(TABLE)
        with open(os.path.join(self.dir, 'a'), 'w'), self.assertLogs('tenuto', 'INFO') as log:
            self.assertIsNone(self.tables.keep(space, 'toy'))
        self.assertRegex(log.output[0], 'WARNING.*not kept')

    def test_the_directory_comes_from_the_environment(self):
        for environment, directory in (({'TENUTO_SLACK_DIR': '/a', 'XDG_CACHE_HOME': '/b'}, '/a'), ({'XDG_CACHE_HOME': '/b'}, '/b/tenuto/slack'),
                                       ({'HOME': '/c'}, '/c/.cache/tenuto/slack')):
            with mock.patch.dict(os.environ, environment, clear=True):
                self.assertEqual(slack.Tables().directory, directory)


class Settings(Case):
    def setUp(self):
        super().setUp()
        self.cache = self.open()
        self.space = self.raw(self.cache)[0]

    def test_auto_keeps_every_minute_and_at_the_end(self):
        setting = slack.Setting(directory=self.dir + '/slack')
        with self.assertLogs('tenuto', 'INFO'):
            setting.restore(self.space, 'toy')
        path = setting.tables.path('toy')
        self.space.slack(TABLE)
        setting.keep(self.space, 'toy')
        self.assertFalse(os.path.exists(path))
        now = time.monotonic() + slack.KEEP_EVERY_S + 1
        with mock.patch.object(time, 'monotonic', lambda: now):
            setting.keep(self.space, 'toy')
            setting._writer.join(30)
            self.assertTrue(os.path.exists(path))
            other = TABLE.replace('some', 'another')
            self.space.slack(other)
            setting.keep(self.space, 'toy')
            with open(path, encoding='utf-8') as file:
                self.assertEqual(file.read(), TABLE)
            setting.keep(self.space, 'toy', closing=True)
        with open(path, encoding='utf-8') as file:
            self.assertEqual(file.read(), other)
        self.cache.close()
        with self.assertLogs('tenuto', 'INFO') as log:
            setting.keep(self.space, 'toy', closing=True)
        self.assertIn('not kept', log.output[0])

    def test_a_directory_that_hangs_stops_nothing(self):
        setting, writes, on = slack.Setting(directory=self.dir + '/slack'), [], threading.Event()
        self.addCleanup(on.set)

        def write(fingerprint, text):
            writes.append(fingerprint)
            on.wait(60)

        self.space.slack(TABLE)
        with mock.patch.object(setting.tables, 'write', write), mock.patch.object(slack, 'CLOSING_S', 0.1), self.assertLogs('tenuto', 'INFO') as log:
            before = time.monotonic()
            for name in ('toy', 'toy', 'toy long'):
                setting.keep(self.space, name)
            setting.keep(self.space, 'toy', closing=True)
            self.assertLess(time.monotonic() - before, 30)
            self.assertEqual(writes, ['toy'])
            on.set()
            setting._writer.join(30)
            setting.keep(self.space, 'toy long')  # which had not had its turn
            setting._writer.join(30)
        self.assertEqual(writes, ['toy', 'toy long'])
        self.assertEqual(len(log.output), 1, log.output)
        self.assertRegex(log.output[0], 'WARNING.*not kept: .*0.1 s')

    def test_keeping_never_raises(self):
        setting, space = slack.Setting(directory=self.dir + '/slack'), mock.Mock()
        self.space.slack(TABLE)
        with mock.patch.object(slack, 'KEEP_EVERY_S', 0.0):
            for error in (tenuto.Timeout(110, 'late'), tenuto.Forked(10, 'forked'), tenuto.Error(5, 'broken'), MemoryError()):
                space.slack.side_effect = error
                with self.subTest(error=error), self.assertLogs('tenuto', 'INFO') as log:
                    for _ in range(3):
                        setting.keep(space, 'toy')
                self.assertEqual(len(log.output), 1, log.output)
                self.assertRegex(log.output[0], 'WARNING.*not kept')
            with mock.patch.object(threading.Thread, 'start', side_effect=RuntimeError('no thread')), self.assertLogs('tenuto', 'INFO'):
                setting.keep(self.space, 'toy', closing=True)

    def test_a_path_is_read_and_never_written(self):
        path = os.path.join(self.dir, 'table')
        with open(path, 'w', encoding='utf-8') as file:
            file.write(TABLE)
        setting = slack.Setting(path)
        with self.assertLogs('tenuto', 'INFO') as log:
            setting.restore(self.space, 'toy')
        self.assertEqual(log.records[0].getMessage(), f'slack table: {path} (given)')
        self.assertEqual(self.space.slack(), TABLE)
        self.space.slack(TABLE.replace('some', 'another'))
        setting.keep(self.space, 'toy', closing=True)
        with open(path, 'r+', encoding='utf-8') as file:
            self.assertEqual(file.read(), TABLE)
            file.truncate(100)
        with self.assertRaisesRegex(ValueError, f'tenuto: slack: {path}: line'):
            slack.Setting(path)
        os.unlink(path)
        with self.assertLogs('tenuto', 'INFO'):
            setting.restore(self.space, 'toy')
        self.assertEqual(self.space.slack(), TABLE)

    def test_a_path_that_a_space_does_not_take_is_one_warning(self):
        path = os.path.join(self.dir, 'table')
        with open(path, 'w', encoding='utf-8') as file:
            file.write(TABLE.replace('model -', 'model other'))
        setting = slack.Setting(path)
        with self.assertLogs('tenuto', 'INFO') as log:
            for _ in range(3):
                setting.restore(self.space, 'toy')
        self.assertEqual(len(log.output), 1, log.output)
        self.assertRegex(log.output[0], f'WARNING.*{path} .ignored: .*table of other')

    def test_off_does_nothing(self):
        setting = slack.Setting('off', directory=self.dir + '/slack')
        with self.assertNoLogs('tenuto', 'INFO'):
            setting.restore(self.space, 'toy')
            self.space.slack(TABLE)
            setting.keep(self.space, 'toy', closing=True)
        self.assertFalse(os.path.exists(self.dir + '/slack'))

    def test_another_value_is_refused(self):
        for value in (None, True, 1, ''):
            with self.assertRaisesRegex(ValueError, 'tenuto: slack: .*auto, off'):
                slack.Setting(value)
        with self.assertRaisesRegex(FileNotFoundError, 'tenuto: slack: .*no such file'):
            slack.Setting('on')
        with self.assertRaisesRegex(IsADirectoryError, 'is a directory: .*TENUTO_SLACK_DIR'):
            slack.Setting(self.dir)

    def test_a_file_in_the_directorys_place_is_named(self):
        path = os.path.join(self.dir, 'file')
        with open(path, 'w', encoding='utf-8'):
            pass
        tables = slack.Tables(path)
        with self.assertLogs('tenuto', 'WARNING') as log:
            self.assertIsNone(tables.restore(self.space, 'toy'))
            self.space.slack(TABLE)
            self.assertIsNone(tables.keep(self.space, 'toy'))
        self.assertEqual([f'{path} is no directory: set TENUTO_SLACK_DIR' in line for line in log.output], [True, True])


if __name__ == '__main__':
    main(__name__)
