# SPDX-License-Identifier: Apache-2.0
"""Tenuto under vLLM: a connector (tenuto.vllm.connector) and a tier below vLLM's own offloading (tenuto.vllm.tier).

docs/engines.md has the configurations to paste. Nothing is imported here: vLLM imports the module that its configuration names.
"""
