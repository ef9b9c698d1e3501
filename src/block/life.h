/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a block that an engine builds token by token (tenuto/sequence.h), as a table. Pure. The registry knows what comes behind it: block.h. */
#ifndef TN_BLOCK_LIFE_H
#define TN_BLOCK_LIFE_H

#include <tenuto/sequence.h>

enum tn_life_step { TN_LIFE_INIT, TN_LIFE_ADD, TN_LIFE_COMMIT, TN_LIFE_REGISTER, TN_LIFE_TO_RESET, TN_LIFE_DROP, TN_LIFE_STEPS };

/* What a step makes of a state: enum tn_life, or -EINVAL with a detail that names both: the step is forbidden. */
int tn_life_next(enum tn_life life, enum tn_life_step step);

#endif
