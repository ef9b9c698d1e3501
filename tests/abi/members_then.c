/* SPDX-License-Identifier: Apache-2.0 */
/* Where the members lay in the first version. */
#include "members.h"
#include "tenuto_0_1.h"

const struct member members_then[] = {MEMBERS};
const struct member growing_then[] = {GROWING};
const struct member fixed_then[] = {FIXED};
const size_t members_count = sizeof(members_then) / sizeof(members_then[0]);
const size_t growing_count = sizeof(growing_then) / sizeof(growing_then[0]);
const size_t fixed_count = sizeof(fixed_then) / sizeof(fixed_then[0]);
