# SPDX-License-Identifier: Apache-2.0
"""What the style checks know of C: how to take out comments and strings, find functions, and find comments of declarations.

This is no parser. It relies on the format of this project's code, and is wrong in harmless ways elsewhere.
"""
import re

_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def _blank(match):
    """The same number of lines, nothing on them; strings stay as empty strings."""
    text = match.group()
    if text[0] == '"':
        return '""'
    if text[0] == "'":
        return '0'
    return '\n' * text.count('\n') or ' '


def strip(text):
    """Text without comments and the contents of strings; line numbers are kept."""
    return _TOKEN.sub(_blank, text)


def comments(text):
    """(offset, comment) of each comment."""
    return [(m.start(), m.group()) for m in _TOKEN.finditer(text) if m.group()[0] == '/']


def includes(text):
    """(line number, path, is_system) of each #include."""
    for number, line in enumerate(text.split('\n'), 1):
        m = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', line)
        if m:
            yield number, m.group(1) or m.group(2), m.group(1) is None


def calls(text):
    """(line number, name) of everything that looks like a call or a declaration of a function."""
    for number, line in enumerate(strip(text).split('\n'), 1):
        for m in re.finditer(r'(?<![\w.])(?<!->)([A-Za-z_]\w*)\s*\(', line):
            yield number, m.group(1)


def _without_directives(text):
    """Preprocessor lines (with their continuations) made empty."""
    out, inside = [], False
    for line in text.split('\n'):
        directive = inside or line.lstrip().startswith('#')
        inside = directive and line.endswith('\\')
        out.append('' if directive else line)
    return '\n'.join(out)


def functions(text):
    """(name, first line, number of lines) of each function: from its name's line to its closing brace."""
    code = re.sub(r'extern\s*""\s*\{|__attribute__\s*\(\([^\n]*?\)\)', '', _without_directives(strip(text)))
    depth, start, line = 0, 0, 1
    head, head_at = None, 0
    for i, c in enumerate(code):
        if c == '\n':
            line += 1
        elif c == '{':
            if depth == 0:
                m = re.search(r'([A-Za-z_]\w*)\s*\((?:[^{};]*)\)[\s\w()]*$', code[start:i])
                head = m.group(1) if m and '=' not in code[start:i] else None
                head_at = line - code[start:i][m.start():].count('\n') if m else line
            depth += 1
        elif c == '}':
            # A brace in the first column ends whatever was open: #if branches may have opened one too many.
            depth = 0 if i == 0 or code[i - 1] == '\n' else max(depth - 1, 0)
            if depth == 0:
                if head:
                    yield head, head_at, line - head_at + 1
                head, start = None, i + 1
        elif c == ';' and depth == 0:
            start = i + 1


def api(text):
    """(name, comment or None) of each function that a public header declares with TN_API."""
    for m in re.finditer(r'^TN_API\b([^(;]*?)(\w+)\s*\(', text, re.M):
        before = text[:m.start()].rstrip()
        comment = None
        if before.endswith('*/'):
            comment = before[before.rfind('/*'):]
        yield m.group(2), comment


def is_kernel_doc(comment, name):
    return bool(comment) and re.match(r'/\*\*[\s*]*' + re.escape(name) + r' - \S', comment) is not None


def map_symbols(text):
    """Names in the global part of a linker version script."""
    m = re.search(r'global:(.*?)local:', text, re.S)
    return re.findall(r'([A-Za-z_]\w*)\s*;', m.group(1)) if m else []
