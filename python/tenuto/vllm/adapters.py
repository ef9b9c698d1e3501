# SPDX-License-Identifier: Apache-2.0
"""Which weights a LoRA adapter has: vLLM's block hashes have its name and path, and not what was written there. Neither vLLM nor torch is imported here.

An adapter's files are looked at when a request asks for it. Are they others than when it was first asked for, nobody knows which of them the engine has
loaded: its requests are then computed without the cache until the engine starts again.
"""
import hashlib
import os


def files_of(path):
    """A digest of names, sizes and times of an adapter's files; None if they cannot be looked at here."""
    try:
        with os.scandir(path) as entries:
            told = sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in entries if e.is_file())
    except OSError:
        return None
    return hashlib.sha256(repr(told).encode()).digest()


class Adapters:
    """`revised`: the configuration has a revision, so that whoever wrote it answers for adapters whose files are elsewhere."""

    def __init__(self, revised, warn):
        self.revised, self.warn = revised, warn
        self.seen = {}  # (name, id, path) -> what its first request has found; None: not to be used

    def of(self, lora):
        """What belongs to the keys of a request: b"" without an adapter, None if its blocks are neither to be saved nor to be looked up."""
        if lora is None:
            return b""
        who = lora.lora_name, lora.lora_int_id, lora.lora_path
        found = files_of(lora.lora_path)
        if who not in self.seen:
            self.seen[who] = found if found or not self.revised else b""
            if self.seen[who] is None:
                self.warn(f"tenuto: the files of adapter {lora.lora_name} cannot be looked at ({lora.lora_path}): its requests are computed without the cache. Give "
                          'a directory, or set "revision" and change it with the adapter')
        elif self.seen[who] and found != self.seen[who]:
            self.seen[who] = None
            self.warn(f"tenuto: adapter {lora.lora_name} was written anew at {lora.lora_path}, and the engine may have either in memory: its requests are computed "
                      "without the cache until the engine starts again, or loads it under another id")
        return self.seen[who]

    @staticmethod
    def named(digest, adapter):
        """A block's hash, with its adapter."""
        return hashlib.blake2b(digest, key=adapter, digest_size=32).digest()[:len(digest)] if adapter else digest
