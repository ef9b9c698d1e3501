# SPDX-License-Identifier: Apache-2.0
"""Loggers below "nixl"."""
import logging


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(name if name.startswith('nixl') else f'nixl.{name}')
