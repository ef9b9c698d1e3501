/* SPDX-License-Identifier: Apache-2.0 */
/* Space.name_blocks. */
#ifndef TN_PYTHON_NAMES_H
#define TN_PYTHON_NAMES_H

#include "binding.h"

/** tn_py_space_name_blocks - the method */
PyObject *tn_py_space_name_blocks(PyObject *self, PyObject *args, PyObject *kw);

#endif
