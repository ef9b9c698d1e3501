# SPDX-License-Identifier: Apache-2.0
"""What an installed LMCache calls on a native connector: read out of its source, which needs neither torch nor an import.

    python lmcache_calls.py > lmcache_calls.json
"""
import ast
import importlib.util
import json
import os


def _tree(name):
    spec = importlib.util.find_spec('lmcache')
    if not spec or not spec.submodule_search_locations:
        raise ImportError('no LMCache')
    with open(os.path.join(spec.submodule_search_locations[0], 'v1/distributed/l2_adapters', name)) as f:
        return ast.parse(f.read())


def read():
    """{'client': {method: number of arguments}, 'required': [names that it looks for]}"""
    client, required = {}, []
    for node in ast.walk(_tree('native_connector_l2_adapter.py')):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ('self._client', 'native_client'):
            client[node.func.attr] = len(node.args) + len(node.keywords)
    for node in ast.walk(_tree('native_plugin_l2_adapter.py')):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == 'required_methods':
            required = sorted(ast.literal_eval(node.value))
    return {'client': dict(sorted(client.items())), 'required': required}


if __name__ == '__main__':
    print(json.dumps(read(), indent=1))
