/* SPDX-License-Identifier: Apache-2.0 */
#include "cost.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "cli.h"

#define SECONDS_PER_DAY 86400.0
#define NAMES_MAX 4

/* One member of a list NAME=NUMBER,... */
struct member {
	const char *name;
	double *value;
	bool zero; /* 0 is allowed */
	const char *form; /* what to write, where the name does not say it; "" */
	bool given;
};

static int no_such_member(const char *option, const char *name, const struct member *members, size_t n)
{
	const char *names[NAMES_MAX];
	char all[80] = "";
	const char *near;
	size_t at = 0;

	for (size_t i = 0; i < n; i++) {
		names[i] = members[i].name;
		at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s", i ? ", " : "", names[i]);
	}
	near = cli_nearest(name, names, n);
	if (near)
		return cli_error(CLI_USAGE, "%s: there is no '%s'; did you mean %s?", option, name, near);
	return cli_error(CLI_USAGE, "%s: there is no '%s'; there are %s, as in %s=1", option, name, all, names[0]);
}

static int parse_member(const char *option, const char *item, struct member *members, size_t n)
{
	const char *equals = strchr(item, '=');
	char name[32], why[CLI_WHY];

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(item, "="), item);
	for (size_t i = 0; i < n; i++) {
		if (strcmp(name, members[i].name) != 0)
			continue;
		if (!equals)
			return cli_error(CLI_USAGE, "%s: '%s' needs a number, as in %s=1", option, name, name);
		if (members[i].given)
			return cli_error(CLI_USAGE, "%s: %s stands there twice; leave one", option, name);
		members[i].given = true;
		*members[i].value = 0;
		if ((members[i].zero && !strcmp(equals + 1, "0")) || !cli_rate(equals + 1, members[i].value, why))
			return CLI_OK;
		return cli_error(CLI_USAGE, "%s: %s: %s%s%s", option, name, why, members[i].zero ? "; 0 is free" : "", members[i].form);
	}
	return no_such_member(option, name, members, n);
}

static int parse_list(const char *option, const char *text, struct member *members, size_t n)
{
	char item[80];
	int rc = CLI_OK;

	for (size_t i = 0; i < n; i++)
		members[i].given = false;
	for (const char *s = text; !rc && s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
		snprintf(item, sizeof(item), "%.*s", (int)strcspn(s, ","), s);
		if (!*item && *text)
			return cli_error(CLI_USAGE, "%s: '%.60s': something is missing %s the comma, such as %s=1", option, text,
					 s == text ? "before" : "behind", members[0].name);
		rc = parse_member(option, item, members, n);
	}
	return rc;
}

int cost_parse_prices(const char *text, struct cost_prices *p)
{
	struct member members[] = {{"gpu", &p->gpu, true, "", false}, {"dram", &p->dram_gb, true, "", false}, {"ssd", &p->ssd_gb, true, "", false}};
	const size_t n = sizeof(members) / sizeof(members[0]);
	int rc = parse_list("--price", COST_PRICES, members, n);

	return rc || !text ? rc : parse_list("--price", text, members, n);
}

int cost_parse_drive(const char *text, struct cost_drive *d)
{
	struct member members[] = {{"gb", &d->gb, false, "; GB without a unit: gb=7680 is 7.68 TB", false},
				   {"dwpd", &d->writes_per_day, false, "", false}, {"years", &d->years, false, "", false},
				   {"waf", &d->amplification, false, "", false}};
	const size_t n = sizeof(members) / sizeof(members[0]);
	int rc = parse_list("--drive", COST_DRIVE, members, n);

	d->gb = 0;
	return rc || !text ? rc : parse_list("--drive", text, members, n);
}

double cost_hourly(const struct cost_prices *p, double dram_bytes, double ssd_bytes)
{
	return p->gpu + (dram_bytes * p->dram_gb + ssd_bytes * p->ssd_gb) * 1e-9;
}

double cost_per_mtoken(double hourly, double seconds, double tokens)
{
	return tokens > 0 ? hourly * seconds / 3600 / tokens * 1e6 : 0;
}

/* Nine digits behind the point, as cli_rate takes them, without the zeros at the end. */
char *cost_text(char *buf, double dollars)
{
	size_t n = (size_t)snprintf(buf, COST_TEXT, "%.9f", dollars);

	while (buf[n - 1] == '0')
		buf[--n] = 0;
	if (buf[n - 1] == '.')
		buf[n - 1] = 0;
	return buf;
}

double cost_drive_writes_per_day(const struct cost_drive *d, double capacity_bytes, double bytes, double seconds)
{
	if (!(bytes > 0))
		return 0;
	return bytes * d->amplification / seconds * SECONDS_PER_DAY / capacity_bytes;
}

double cost_drive_years(const struct cost_drive *d, double writes_per_day)
{
	return writes_per_day > 0 ? d->years * d->writes_per_day / writes_per_day : INFINITY;
}
