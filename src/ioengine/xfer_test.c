/* SPDX-License-Identifier: Apache-2.0 */
/* The progress of a transfer, with a kernel that moves a random number of bytes. */
#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "ioengine/engine.h"
#include "tn_test.h"

#define UNIT 512u

struct fixture {
	struct tn_iofiles files;
	struct tn_rng rng;
};

static int setup(void **state)
{
	static struct fixture f;

	tn_iofiles_init(&f.files, NULL);
	f.files.f[3] = (struct tn_iofile){.fd = 1000, .direct = true, .offset_align = UNIT, .memory_align = 4};
	tn_rng_seed(&f.rng, tn_test_seed());
	*state = &f;
	return 0;
}

/* Copies what the kernel would move from src, which begins at the request's offset. */
static void move_bytes(char *src, const struct iovec *iov, uint32_t n, uint32_t bytes)
{
	for (uint32_t i = 0; i < n && bytes; i++) {
		uint32_t part = iov[i].iov_len < bytes ? (uint32_t)iov[i].iov_len : bytes;

		memcpy(iov[i].iov_base, src, part);
		src += part;
		bytes -= part;
	}
}

static void any_sequence_of_short_transfers_moves_each_byte_once(void **state)
{
	enum { UNITS = 3000, MAX = UNITS * UNIT };
	struct fixture *f = *state;
	char *src = malloc(MAX), *dst = malloc(MAX);
	struct iovec *iov = calloc(UNITS, sizeof(*iov)), *copy = calloc(UNITS, sizeof(*iov));

	for (unsigned i = 0; i < MAX; i++)
		src[i] = (char)tn_rng_next(&f->rng);
	for (int round = 0; round < 300; round++) {
		struct tn_io_req req = {.op = TN_IO_READ, .file = 3, .iov = iov};
		uint32_t pieces = 1 + tn_rng_below(&f->rng, round % 3 ? 40 : UNITS), longest = 1 + tn_rng_below(&f->rng, 8);
		int more = 1;

		while (req.iov_count < pieces) {
			uint32_t n = UNIT * (1 + tn_rng_below(&f->rng, longest));

			if (req.length + n > MAX)
				break;
			iov[req.iov_count++] = (struct iovec){dst + req.length, n};
			req.length += n;
		}
		memcpy(copy, iov, req.iov_count * sizeof(*iov));
		memset(dst, 0, MAX);
		assert_int_equal(tn_ioxfer_begin(&f->files, &req, f), 0);
		while (more == 1) {
			const struct iovec *v;
			struct iovec one;
			uint32_t n, res, sum = 0;

			v = tn_ioxfer_next(&req, &one, &n);
			assert_in_range(n, 1, TN_IOXFER_PIECES);
			for (uint32_t i = 0; i < n; i++)
				sum += (uint32_t)v[i].iov_len;
			assert_int_equal(sum, tn_ioxfer_of(&req)->want);
			res = tn_rng_below(&f->rng, 3) ? sum : UNIT * (1 + tn_rng_below(&f->rng, sum / UNIT));
			move_bytes(src + req.transferred, v, n, res);
			more = tn_ioxfer_advance(&f->files, &req, res);
		}
		assert_int_equal(more, 0);
		assert_int_equal(req.transferred, req.length);
		assert_memory_equal(dst, src, req.length);
		assert_memory_equal(iov, copy, req.iov_count * sizeof(*iov));
		assert_int_equal(f->files.f[3].inflight, 1);
		tn_ioxfer_end(&f->files, &req);
		assert_int_equal(f->files.f[3].inflight, 0);
	}
	free(copy);
	free(iov);
	free(dst);
	free(src);
}

static void no_progress_and_an_odd_end_on_a_direct_file_are_errors(void **state)
{
	struct fixture *f = *state;
	char mem[4 * UNIT];
	struct iovec iov[2] = {{mem, UNIT}, {mem + UNIT, 3 * UNIT}}, one;
	struct tn_io_req req = {.op = TN_IO_WRITE, .file = 3, .iov = iov, .iov_count = 2,
				.length = 4 * UNIT};
	uint32_t n;

	assert_int_equal(tn_ioxfer_begin(&f->files, &req, f), 0);
	tn_ioxfer_next(&req, &one, &n);
	assert_int_equal(tn_ioxfer_advance(&f->files, &req, 2 * UNIT), 1);
	tn_ioxfer_next(&req, &one, &n);
	assert_ptr_equal(one.iov_base, mem + 2 * UNIT);
	assert_int_equal(tn_ioxfer_advance(&f->files, &req, 0), -EIO);
	assert_int_equal(req.transferred, 2 * UNIT);
	tn_ioxfer_end(&f->files, &req);

	assert_int_equal(tn_ioxfer_begin(&f->files, &req, f), 0);
	tn_ioxfer_next(&req, &one, &n);
	assert_int_equal(tn_ioxfer_advance(&f->files, &req, UNIT + 100), -EIO);
	assert_int_equal(req.transferred, UNIT + 100);
	tn_ioxfer_end(&f->files, &req);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_sequence_of_short_transfers_moves_each_byte_once),
		cmocka_unit_test(no_progress_and_an_odd_end_on_a_direct_file_are_errors),
	};

	return cmocka_run_group_tests_name("ioxfer", tests, setup, NULL);
}
