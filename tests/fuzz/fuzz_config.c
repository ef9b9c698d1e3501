/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of config_parse: whatever the bytes, it refuses them with a message that begins with the file, or gives settings that print to a file which gives the
 * same settings again.
 */
#include <assert.h>
#include <string.h>

#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *printed(const struct config *c, size_t *bytes)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, bytes);

	assert(out);
	config_print(c, out);
	fclose(out);
	return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char why[CONFIG_WHY] = "";
	struct config c, again;
	char *once, *twice;
	size_t n, m;

	config_init(&c);
	if (config_parse(&c, "f", data, size, why)) {
		assert(strncmp(why, "f:", 2) == 0 && strlen(why) > 5);
		config_free(&c);
		return 0;
	}
	once = printed(&c, &n);
	config_init(&again);
	assert(config_parse(&again, "f", once, n, why) == 0);
	twice = printed(&again, &m);
	assert(n == m && memcmp(once, twice, n) == 0);
	for (const struct config_setting *s = config_settings; s->name; s++)
		assert(config_same(s, &c, &again));
	free(once);
	free(twice);
	config_free(&again);
	config_free(&c);
	return 0;
}
