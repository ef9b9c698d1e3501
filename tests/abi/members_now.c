/* SPDX-License-Identifier: Apache-2.0 */
/* Where the same members lie in the headers of today. */
#include <tenuto/tenuto.h>

#include "members.h"

const struct member members_now[] = {MEMBERS};
const struct member growing_now[] = {GROWING};
const struct member fixed_now[] = {FIXED};
