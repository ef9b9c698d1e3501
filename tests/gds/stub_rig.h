/* SPDX-License-Identifier: Apache-2.0 */
/* What programs need that test over the stub of cuFile: it is found before any other one, and so is the plugin, in a directory that may hold plugins. */
#ifndef TN_TEST_STUB_RIG_H
#define TN_TEST_STUB_RIG_H

#include <limits.h>

#include "stub_cufile.h"

/* The program's directory, without a slash at the end. Returns it, or NULL: there is no /proc. */
const char *stub_rig_built(void);
/*
 * Starts the program again, with the stub's directory (its own) in LD_LIBRARY_PATH, unless that is so. Then makes the directory `top` with a copy of the
 * plugin gds, and has the library look for plugins there alone. The stub, or NULL, and stderr says why.
 */
struct stub_cufile *stub_rig_up(char **argv, char top[PATH_MAX]);
/* Removes the directory and what is in it. */
void stub_rig_down(const char *top);

#endif
