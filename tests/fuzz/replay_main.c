/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over its corpus without libFuzzer: every file as it is, then mutations of them by a
 * seeded generator (TN_SEED, default 1; TN_FUZZ_ROUNDS mutations per file, default 2,000). Prints TAP.
 *
 * It finds regressions, not new paths, because it has no coverage feedback. `make fuzz` has that.
 * An input that kills the target is printed in hex, ready for `xxd -r -p` and the corpus.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

#define INPUT_MAX 65536u
#define FILES_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Defined by the sanitizers' runtime where there is one. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static struct {
	const char *file;
	long round; /* -1: the file itself */
	const uint8_t *data;
	size_t size;
} now;

static void print_input(void)
{
	fprintf(stderr, "# died on %s, mutation %ld, %zu bytes:\n", now.file, now.round, now.size);
	for (size_t i = 0; i < now.size; i++)
		fprintf(stderr, "%02x%s", now.data[i], i % 64 == 63 ? "\n" : "");
	fputc('\n', stderr);
}

static void died(int sig)
{
	signal(sig, SIG_DFL);
	print_input(); /* not async-signal-safe; the process is lost anyway, and the input is worth the risk */
	raise(sig);
}

/* The input is an allocation of its exact size, so that a sanitizer sees a read beyond its end. */
static void run(const char *file, long round, const uint8_t *data, size_t size)
{
	uint8_t *exact = malloc(size ? size : 1);

	if (!exact)
		abort();
	memcpy(exact, data, size);
	now.file = file;
	now.round = round;
	now.data = exact;
	now.size = size;
	LLVMFuzzerTestOneInput(exact, size);
	free(exact);
}

/* One to four changes: a flipped bit, an extreme byte or word, a piece doubled, removed or cut off. */
static size_t mutate(struct tn_rng *rng, uint8_t *buf, size_t size)
{
	static const uint64_t extremes[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fffffff, 0x80000000, 0xffffffff,
					    0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff};

	for (uint32_t n = 1 + tn_rng_below(rng, 4); n > 0 && size > 0; n--) {
		size_t at = tn_rng_below(rng, (uint32_t)size), len = 1 + tn_rng_below(rng, 16);
		uint64_t v = extremes[tn_rng_below(rng, sizeof(extremes) / sizeof(extremes[0]))];

		len = len > size - at ? size - at : len;
		switch (tn_rng_below(rng, 6)) {
		case 0:
			buf[at] ^= (uint8_t)(1u << tn_rng_below(rng, 8));
			break;
		case 1:
			buf[at] = (uint8_t)tn_rng_next(rng);
			break;
		case 2:
			memcpy(buf + at, &v, len < sizeof(v) ? len : sizeof(v));
			break;
		case 3:
			if (size + len <= INPUT_MAX) {
				memmove(buf + at + len, buf + at, size - at);
				size += len;
			}
			break;
		case 4:
			memmove(buf + at, buf + at + len, size - at - len);
			size -= len;
			break;
		default:
			size = at;
		}
	}
	return size;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Paths of the files of a directory, sorted, so that a run does not depend on the file system. */
static size_t list(const char *dir, char **paths)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	size_t n = 0;

	while (d && n < FILES_MAX && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		if (asprintf(&paths[n++], "%s/%s", dir, e->d_name) < 0)
			abort();
	}
	if (d)
		closedir(d);
	qsort(paths, n, sizeof(*paths), by_name);
	return n;
}

static int replay(const char *path, struct tn_rng *rng, long rounds)
{
	static uint8_t original[INPUT_MAX], buf[INPUT_MAX];
	FILE *f = fopen(path, "rb");
	size_t size;

	if (!f) {
		fprintf(stderr, "# %s: %s\n", path, strerror(errno));
		return -1;
	}
	size = fread(original, 1, sizeof(original), f);
	fclose(f);
	run(path, -1, original, size);
	for (long r = 0; r < rounds; r++) {
		memcpy(buf, original, size);
		run(path, r, buf, mutate(rng, buf, size));
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const int deadly[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
	static char *paths[FILES_MAX];
	const char *seed = getenv("TN_SEED"), *rounds = getenv("TN_FUZZ_ROUNDS");
	struct tn_rng rng;
	size_t n = argc == 2 ? list(argv[1], paths) : 0;
	int failed = 0;

	if (n == 0) {
		printf("1..1\nnot ok 1 - a corpus directory with files is given\n");
		return 1;
	}
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(print_input);
	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		signal(deadly[i], died);
	tn_rng_seed(&rng, seed ? strtoull(seed, NULL, 0) : 1);
	printf("# TN_SEED=%s\n1..%zu\n", seed ? seed : "1", n);
	for (size_t i = 0; i < n; i++) {
		int rc = replay(paths[i], &rng, rounds ? strtol(rounds, NULL, 0) : 2000);

		printf("%sok %zu - %s and mutations of it\n", rc ? "not " : "", i + 1, strrchr(paths[i], '/') + 1);
		failed |= rc;
		free(paths[i]);
	}
	return failed ? 1 : 0;
}
