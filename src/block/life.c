/* SPDX-License-Identifier: Apache-2.0 */
#include "block/life.h"

#include <errno.h>

#include "base/error.h"

/* One more than the state that follows; 0: forbidden. */
#define TO(life) (TN_LIFE_##life + 1)

static const unsigned char next[TN_LIVES][TN_LIFE_STEPS] = {
	[TN_LIFE_RESET] = {[TN_LIFE_INIT] = TO(PARTIAL)},
	[TN_LIFE_PARTIAL] = {[TN_LIFE_ADD] = TO(PARTIAL), [TN_LIFE_COMMIT] = TO(COMPLETE), [TN_LIFE_TO_RESET] = TO(RESET)},
	[TN_LIFE_COMPLETE] = {[TN_LIFE_REGISTER] = TO(REGISTERED), [TN_LIFE_TO_RESET] = TO(RESET)},
	[TN_LIFE_REGISTERED] = {[TN_LIFE_DROP] = TO(RESET)},
};

int tn_life_next(enum tn_life life, enum tn_life_step step)
{
	static const char *const lives[] = {"Reset", "Partial", "Complete", "Registered"};
	static const char *const steps[] = {"init", "add tokens to", "commit", "register", "reset", "drop"};

	if (next[life][step])
		return next[life][step] - 1;
	return tn_fail(-EINVAL, "cannot %s a block that is %s", steps[step], lives[life]);
}
