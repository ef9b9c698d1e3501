# SPDX-License-Identifier: Apache-2.0
"""What an installed SGLang has its storage backends do: read out of its source, which needs neither torch nor an import.

    python sglang_calls.py > sglang_calls.json
"""
import ast
import glob
import importlib.util
import json
import os


def _directory():
    spec = importlib.util.find_spec('sglang')
    if not spec or not spec.submodule_search_locations:
        raise ImportError('no SGLang')
    return os.path.join(spec.submodule_search_locations[0], 'srt')


def _parse(path):
    with open(path) as f:
        return ast.parse(f.read())


def read():
    """{'methods': {name of the base class: [arguments]}, 'called': [names], 'config': [fields], 'transfer': [fields]}"""
    root, methods, fields = _directory(), {}, {}
    for node in _parse(os.path.join(root, 'mem_cache/hicache_storage.py')).body:
        if isinstance(node, ast.ClassDef) and node.name == 'HiCacheStorage':
            methods = {f.name: [a.arg for a in f.args.args[1:]] for f in node.body if isinstance(f, ast.FunctionDef)}
        elif isinstance(node, ast.ClassDef):
            fields[node.name] = [a.target.id for a in node.body if isinstance(a, ast.AnnAssign)]
    called = set()
    for path in [os.path.join(root, 'managers/cache_controller.py'), *glob.glob(os.path.join(root, 'mem_cache/*.py'))]:
        for node in ast.walk(_parse(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value).endswith('.storage_backend'):
                called.add(node.func.attr)
    return {'methods': methods, 'called': sorted(called), 'config': fields['HiCacheStorageConfig'], 'transfer': fields['PoolTransfer']}


def configuration():
    """Names of what SGLang can be configured with."""
    trees = map(_parse, glob.glob(os.path.join(_directory(), 'arg_groups/fields/*.py')))
    return {n.target.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


if __name__ == '__main__':
    print(json.dumps(read(), indent=1))
