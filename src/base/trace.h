/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Static trace points (USDT, provider "tenuto"): `perf list sdt_tenuto:*`, `bpftrace -e 'usdt:...'`.
 * They cost one nop when nobody listens, and nothing where <sys/sdt.h> is missing.
 */
#ifndef TN_BASE_TRACE_H
#define TN_BASE_TRACE_H

#ifdef TN_HAVE_SDT
#include <sys/sdt.h>
#define TN_TRACE2(name, a, b) DTRACE_PROBE2(tenuto, name, a, b)
#define TN_TRACE3(name, a, b, c) DTRACE_PROBE3(tenuto, name, a, b, c)
#else
#define TN_TRACE2(name, a, b) ((void)(a), (void)(b))
#define TN_TRACE3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#endif

#endif
