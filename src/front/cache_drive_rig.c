/* SPDX-License-Identifier: Apache-2.0 */
/* The rig's disk where it is a raw namespace. */
#include <stdlib.h>
#include <tenuto/admin.h>

#include "cache_rig.h"

const char *rig_empty_namespace(void)
{
	const char *drive = getenv("TN_TEST_NVME");

	if (drive && tn_admin_format(drive, NULL, NULL, NULL))
		fail_msg("%s: %s", drive, tn_error_last()->text);
	return drive;
}
