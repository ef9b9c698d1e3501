/* SPDX-License-Identifier: Apache-2.0 */
#include <tenuto/error.h>

const char *tn_version(void)
{
	return "0.1.0";
}
