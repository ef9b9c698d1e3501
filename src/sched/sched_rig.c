/* SPDX-License-Identifier: Apache-2.0 */
/* See sched_rig.h. */
#include "sched/sched_rig.h"

#include <string.h>

#include "tn_test.h"

const struct tn_mix rig_ps1010 = {.version = 1, .read_bps = 29000000000 / 16, .write_bps = 12000000000 / 16,
				     .mixed_bps = 12000000000 / 16, .read_latency_ns = 960000, .write_latency_ns = 160000};


static void explain(void *arg, const struct tn_decision *d)
{
	struct sim *m = arg;

	assert_true(d->chosen <= TN_CHOSE_REFUSE && d->reason < TN_REASONS && d->device <= TN_DEVICES_MAX);
	m->told[d->chosen][d->reason]++;
	m->last[d->chosen] = *d;
}

struct sim *rig_create(uint32_t devices, const struct tn_mix *mix)
{
	struct sim *m = calloc(1, sizeof(*m));
	struct tn_sched_opts o = {.devices = devices, .alloc = &tn_alloc_system, .explain = explain, .explain_arg = m};

	assert_non_null(m);
	tn_rng_seed(&m->rng, tn_test_seed());
	assert_int_equal(tn_sched_create(&o, &m->s), 0);
	m->now = 1000 * MS;
	m->slowness = 1;
	for (uint32_t i = 0; i < devices; i++) {
		m->read_bps[i] = (double)rig_ps1010.read_bps;
		m->write_bps[i] = (double)rig_ps1010.write_bps;
		if (mix)
			tn_sched_device(m->s, i, mix);
	}
	for (uint32_t i = 0; i < LOADS; i++)
		tn_list_init(&m->load[i].link);
	return m;
}

void rig_destroy(struct sim *m)
{
	tn_sched_destroy(m->s);
	free(m);
}

void rig_put(struct sim *m, bool write, uint32_t device, uint32_t load)
{
	bool mixed = write ? m->reads[device] : m->writes[device];
	double bps = mixed ? (double)rig_ps1010.mixed_bps : write ? m->write_bps[device] : m->read_bps[device];
	uint64_t from = m->now > m->free_at[device] ? m->now : m->free_at[device];

	assert_true(m->n < 4096);
	if (write ? m->reads[device] : m->writes[device])
		m->overlaps++;
	m->free_at[device] = from + (uint64_t)(CHUNK / bps * 1e9 * m->slowness);
	m->t[m->n++] = (struct transfer){write, device, load, m->free_at[device] + 100000};
	if (write)
		m->writes[device]++;
	else
		m->reads[device]++;
}

void rig_load_begin(struct sim *m, uint32_t i, uint32_t chunks, int32_t priority, uint32_t devices)
{
	struct tn_sched_load *l = &m->load[i];

	*l = (struct tn_sched_load){.id = i + 1, .priority = priority, .layers = 1, .start_ns = m->now};
	m->left[i] = chunks;
	m->flying[i] = 0;
	m->done_ns[i] = 0;
	tn_sched_load_add(m->s, l, m->now);
	tn_sched_load_waits(m->s, l, devices);
}

static uint32_t device_of(const struct sim *m, uint32_t i)
{
	return m->load[i].devices == 3 ? m->left[i] & 1 : (uint32_t)__builtin_ctz(m->load[i].devices);
}

static bool issue(struct sim *m, uint32_t i)
{
	bool any = false;

	for (unsigned k = 0; k < 32 && m->left[i]; k++) {
		uint32_t d = device_of(m, i);

		if (!tn_sched_read(m->s, &m->load[i], m->load[i].next_layer, d, CHUNK, m->now))
			break;
		m->left[i]--;
		m->flying[i]++;
		rig_put(m, false, d, i);
		any = true;
	}
	if (m->left[i] == 0)
		tn_sched_load_waits(m->s, &m->load[i], 0);
	return any;
}

bool rig_turn(struct sim *m, uint32_t writes)
{
	struct tn_sched_load *l;
	bool any = false, more = true;

	tn_sched_turn(m->s, m->now);
	while (more) {
		more = false;
		while ((l = tn_sched_pick(m->s, m->now)))
			more |= issue(m, (uint32_t)(l - m->load));
		any |= more;
		tn_sched_again(m->s);
	}
	for (uint32_t d = 0; d < 2; d++)
		while ((writes >> d & 1) && tn_sched_write(m->s, TN_SCHED_SAVES, d, CHUNK, m->now)) {
			rig_put(m, true, d, 0);
			any = true;
		}
	return any;
}

void rig_end_one(struct sim *m, uint32_t k)
{
	struct transfer t = m->t[k];

	m->t[k] = m->t[--m->n];
	if (t.write) {
		m->writes[t.device]--;
		m->written += CHUNK;
		tn_sched_write_done(m->s, t.device, CHUNK, m->now);
		return;
	}
	m->reads[t.device]--;
	tn_sched_read_done(m->s, t.device, CHUNK, m->now);
	if (--m->flying[t.load] == 0 && m->left[t.load] == 0) {
		m->done_ns[t.load] = m->now;
		tn_sched_load_del(m->s, &m->load[t.load], m->now, true);
	}
}

void rig_advance(struct sim *m, uint64_t until)
{
	uint64_t next = tn_sched_due(m->s);

	for (uint32_t k = 0; k < m->n; k++)
		next = m->t[k].end_ns < next ? m->t[k].end_ns : next;
	m->now = next < until ? next : until;
	for (uint32_t k = m->n; k-- > 0;)
		if (m->t[k].end_ns <= m->now)
			rig_end_one(m, k);
}

void rig_run_until(struct sim *m, uint64_t until, uint32_t writes)
{
	while (m->now < until) {
		rig_turn(m, writes);
		rig_advance(m, until);
	}
}
