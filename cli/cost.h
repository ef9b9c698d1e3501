/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What serving costs in dollars, and how long a drive lasts: prices and drives as options, and the arithmetic over them.
 * A GB is 10^9 bytes. docs/model.md ("What it costs") says what is counted.
 */
#ifndef TENUTO_CLI_COST_H
#define TENUTO_CLI_COST_H

#include <stdint.h>

/* Dollars per hour: of one GPU, of one GB of DRAM, of one GB of SSD. */
struct cost_prices {
	double gpu, dram_gb, ssd_gb;
};

/* All drives of the cache together. */
struct cost_drive {
	double gb;	      /* 0: as large as what the cache holds */
	double writes_per_day; /* that the drive is rated for, over so many years */
	double years;
	double amplification; /* bytes written to flash per byte written to the drive */
};

/* The published prices (arXiv 2605.03375), and the rating of a D7-PS1010 filled by the cache. As the help shows them. */
#define COST_PRICES "gpu=5,dram=0.0088,ssd=0.000082"
#define COST_DRIVE "dwpd=1,years=5,waf=1"
#define COST_PRICES_HELP "dollars per hour: gpu per GPU, dram and ssd per GB (10^9 bytes); what is left out is as the default says"
#define COST_DRIVE_HELP                                                                                                        \
	"for the life of the SSD: dwpd is the rated drive writes per day over so many years, waf the write amplification; gb=N is "  \
	"the capacity of all drives, without it what the cache holds"

/*
 * Reads the value of --price, or of --drive (NULL: the default). CLI_OK, or CLI_USAGE after a message on stderr.
 */
int cost_parse_prices(const char *text, struct cost_prices *p);
int cost_parse_drive(const char *text, struct cost_drive *d);

/* Dollars per hour of one GPU with so many bytes of DRAM and SSD. */
double cost_hourly(const struct cost_prices *p, double dram_bytes, double ssd_bytes);
/* Dollars per million tokens, where so many tokens take so long at this price. 0 without tokens. */
double cost_per_mtoken(double hourly, double seconds, double tokens);
/* "0.000082": a price as one writes it. Returns buf. */
#define COST_TEXT 32
char *cost_text(char *buf, double dollars);
/* How often a day the drive of this capacity is written once over, amplification included. */
double cost_drive_writes_per_day(const struct cost_drive *d, double capacity_bytes, double bytes, double seconds);
/* Years until the rated writes are used up; INFINITY without writes. */
double cost_drive_years(const struct cost_drive *d, double writes_per_day);

#endif
