/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A compute kernel of known work, for machines without a GPU: multiply-adds that no compiler can shorten.
 *
 * The work is calibrated once so that it takes about a microsecond per token of input, and about 60 picoseconds per pair
 * of an input token and a prefix token. Recorded is the time that the kernel took, not the time that it should have taken.
 */
#include <errno.h>

#include "cli.h"
#include "profile.h"

#define REPEATS 5
#define CALIBRATION_NS 20000000u
#define TOKEN_NS 1000.0
#define PAIR_NS 0.06

static const uint64_t inputs[] = {64, 256, 1024, 4096};
static const uint64_t prefixes[] = {0, 4096, 16384, 65536};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint64_t spin(uint64_t steps)
{
	static volatile double sink __attribute__((unused)); /* keeps the compiler from removing the loop */
	uint64_t start = cli_now_ns();
	double x = 1.0;

	for (uint64_t i = 0; i < steps; i++)
		x = x * 1.0000001 + 0.0000001;
	sink = x;
	return cli_now_ns() - start;
}

static double steps_per_ns(void)
{
	uint64_t steps = 1 << 16, ns = spin(steps);

	while (ns < CALIBRATION_NS) {
		steps *= 2;
		ns = spin(steps);
	}
	return (double)steps / (double)ns;
}

int profile_spin(struct profile_rows *rows)
{
	double per_ns = steps_per_ns();

	for (unsigned repeat = 0; repeat < REPEATS; repeat++)
		for (size_t p = 0; p < COUNT(prefixes); p++)
			for (size_t i = 0; i < COUNT(inputs); i++) {
				double in = (double)inputs[i], before = (double)prefixes[p] + in / 2;
				double ns = in * TOKEN_NS + in * before * PAIR_NS;
				struct profile_row row = {inputs[i], prefixes[p], 0, spin((uint64_t)(ns * per_ns))};

				if (profile_rows_add(rows, &row))
					return -ENOMEM;
			}
	return 0;
}
