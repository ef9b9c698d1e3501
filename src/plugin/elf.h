/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plugin's file says before any code of it runs: its section headers, and the numbers at the front of its tn_plugin.
 *
 * Every shared object has code that dlopen runs: the compiler's own start files put _init and one pointer, frame_dummy, into each. A second
 * pointer in .init_array is a constructor of the plugin. A sanitizer puts one into each object file, so a library that is built with a
 * sanitizer counts none. What -Wl,-init=NAME puts in the place of _init is not seen.
 */
#ifndef TN_PLUGIN_ELF_H
#define TN_PLUGIN_ELF_H

#include <stddef.h>

/*
 * file: the bytes of one that `path` names in messages. front: out: the first front_bytes of the constant `symbol`, which may have no address among
 * them. 0; -EPROTO: no shared object, it does not export the constant, or has constructors. Reads nothing outside the file, whatever it has.
 */
int tn_elf_constant(const void *file, size_t bytes, const char *path, const char *symbol, void *front, size_t front_bytes);

#endif
