# SPDX-License-Identifier: Apache-2.0
"""Which weights a LoRA adapter has: vLLM's block hashes have its name and path, and not what was written there. Neither vLLM nor torch is imported here.

An adapter's files are read when a request asks for it the first time, and looked at whenever one does. Are they others than at first, nobody knows which of
them the engine has loaded: its requests are then computed without the cache until the engine starts again.
"""
import hashlib
import os


def files_of(path):
    """Names, sizes and times of an adapter's files; None if they cannot be looked at here."""
    try:
        with os.scandir(path) as entries:
            return sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns, e.stat().st_ctime_ns) for e in entries if e.is_file())
    except OSError:
        return None


def content_of(path, names):
    """A digest of these files of an adapter, the same wherever and whenever they were written; None if they cannot be read here."""
    digest = hashlib.blake2b(digest_size=32)
    try:
        for name in names:
            with open(os.path.join(path, name), "rb") as f:
                digest.update(f"{name!r} {os.fstat(f.fileno()).st_size} ".encode())
                while part := f.read(1 << 20):
                    digest.update(part)
    except OSError:
        return None
    return digest.digest()


class Adapters:
    """`revised`: the configuration has a revision, so that whoever wrote it answers for adapters whose files are elsewhere."""

    def __init__(self, revised, warn):
        self.revised, self.warn = revised, warn
        self.seen = {}  # (name, id, path) -> (what belongs to its keys; None: not to be used, what its first request has found)

    def of(self, lora):
        """What belongs to the keys of a request: b"" without an adapter, None if its blocks are neither to be saved nor to be looked up."""
        if lora is None:
            return b""
        who = lora.lora_name, lora.lora_int_id, lora.lora_path
        found = files_of(lora.lora_path)
        if who not in self.seen:
            self.seen[who] = self._first(lora, found), found
        elif self.seen[who][0] and found != self.seen[who][1]:
            self.seen[who] = None, found
            self.warn(f"tenuto: adapter {lora.lora_name} was written anew at {lora.lora_path}, and the engine may have either in memory: its requests are computed "
                      "without the cache until the engine starts again, or loads it under another id")
        return self.seen[who][0]

    def _first(self, lora, found):
        content = content_of(lora.lora_path, [name for name, *_ in found]) if found is not None else None
        if content is None and self.revised:
            return b""
        if content is None:
            self.warn(f"tenuto: the files of adapter {lora.lora_name} cannot be read ({lora.lora_path}): its requests are computed without the cache. Give "
                      'a directory, or set "revision" and change it with the adapter')
        return content

    @staticmethod
    def named(digest, adapter):
        """A block's hash, with its adapter."""
        return hashlib.blake2b(digest, key=adapter, digest_size=32).digest()[:len(digest)] if adapter else digest
