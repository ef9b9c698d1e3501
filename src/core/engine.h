/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the engines of a cache, and the drives that they are on. Knows nothing of what the memory is for. */
#ifndef TN_CORE_ENGINE_H
#define TN_CORE_ENGINE_H

#include "drives/drives.h"

struct tn_engines;

/* Memory that requests will name for long (io/io.h): as much of it as is whole pages. False: it is not mapped, which is said if it cannot be; it is copied, and not unmapped. */
bool tn_engines_map(const struct tn_engines *e, struct tn_io *io, void *memory, uint64_t bytes);
void tn_engines_unmap(struct tn_io *io, void *memory, uint64_t bytes);

#endif
