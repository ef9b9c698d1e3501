/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.PrefixTree and tenuto.Subscriber: what other caches hold, by their published events. publish(): of one's own. */
#ifndef TN_PYTHON_EVENTS_H
#define TN_PYTHON_EVENTS_H

#include "binding.h"

/** tn_py_events_add - the types and functions; -1 with an exception */
int tn_py_events_add(PyObject *module);

#endif
