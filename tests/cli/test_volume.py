# SPDX-License-Identifier: Apache-2.0
"""`tenuto volume`: a catalogue is made, listed and emptied; what is wrong is named."""
import os

from cli import ENVIRONMENT, USAGE, fail, main, tenuto


def volumes_are_registered_listed_and_removed():
    os.mkdir("kv")
    tenuto("volume", "register", "kv", "models", "--bytes", "4MiB")
    tenuto("volume", "register", "kv", "adapters")
    listed = tenuto("volume", "list", "kv", "--json").json()
    if [(v["name"], v["blob_bytes"]) for v in listed] != [("adapters", 1 << 20), ("models", 4 << 20)]:
        fail("listed: %s" % listed)
    if "4.00 MiB" not in tenuto("volume", "list", "kv").out:
        fail("the table does not say how large blobs may be")
    tenuto("volume", "remove", "kv", "models")
    if [v["name"] for v in tenuto("volume", "list", "kv", "--json").json()] != ["adapters"]:
        fail("a volume that was removed is listed")


def what_is_wrong_is_named():
    os.makedirs("kv", exist_ok=True)
    tenuto("volume", "register", "kv", "again")
    tenuto("volume", "register", "kv", "again", rc=ENVIRONMENT)
    tenuto("volume", "remove", "kv", "none", rc=USAGE)
    tenuto("volume", "list", "missing", rc=USAGE)
    tenuto("volume", "register", "kv", "a/b", rc=USAGE)
    tenuto("volume", "register", "kv", "large", "--bytes", "65MiB", rc=USAGE)


main(globals())
