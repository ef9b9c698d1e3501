/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sources of `tenuto profile`: timings of single layers, read from an engine's file (profile_rows.c) or taken here
 * with a spin kernel (profile_spin.c). cmd_profile.c makes a slack table of them. profile_engine.c leaves all of it to the Python package.
 */
#ifndef TENUTO_PROFILE_H
#define TENUTO_PROFILE_H

#include <stddef.h>
#include <stdint.h>

/* One timing. */
struct profile_row {
	uint64_t input, prefix;
	uint32_t layer;
	uint64_t ns;
	uint32_t sms, iocbs; /* SM budget and most IOCBs meanwhile; 0: not said */
};

struct profile_rows {
	struct profile_row *row;
	size_t n, capacity;
};

/* 0 or -ENOMEM. */
int profile_rows_add(struct profile_rows *rows, const struct profile_row *row);
void profile_rows_free(struct profile_rows *rows);

/*
 * Reads a file of timings: CSV with the columns input, prefix, layer and ns, and if wanted sms and iocbs, in any order, named in
 * its first line, or JSON objects with these members, one per line or all in one array. Other columns and members are ignored. 0, or
 * -errno with "file:line: what" ("file: item N: what" in an array) in error.
 */
int profile_rows_read(const char *name, struct profile_rows *rows, char *error, size_t error_bytes);

/*
 * Times a kernel of known work a few times at each pair of lengths. The kernel is calibrated on this machine, and its work
 * grows with the input and with the prefix as that of a transformer's layer does. 0 or -ENOMEM.
 */
int profile_spin(struct profile_rows *rows);

/* Options of tenuto.profile; NULL: not given. */
struct profile_engine {
	const char *engine, *name, *dtype, *inputs, *prefixes, *repeat, *out;
};

/* Runs tenuto.profile of the Python package in the place of this process. Returns only if that cannot be: the exit code. */
int profile_engine(const char *model, const struct profile_engine *e);

#endif
