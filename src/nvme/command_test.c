/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of commands, read back by the rules of the specification; and the queue's entries, in every order of small cases. */
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"
#include "nvme/queue.h"
#include "tn_test.h"

#define LIST_BUS 0x700000ull
#define LIST_PAGES 4u

static uint64_t words[LIST_PAGES * TN_NVME_PRPS_PER_PAGE];
static const struct tn_nvme_list list = {words, LIST_BUS, sizeof(words)};

/* The k-th page that the command's PRPs name. */
static uint64_t prp(const struct tn_nvme_command *c, uint64_t k, uint64_t entries)
{
	uint64_t at = c->data[1];

	if (k == 0)
		return c->data[0];
	if (entries == 2)
		return c->data[1];
	for (uint64_t i = 1;; i++, at += 8) {
		uint64_t word = words[(at - LIST_BUS) / 8];

		if (at % TN_NVME_PAGE == TN_NVME_PAGE - 8 && i + 1 < entries) {
			at = word;
			word = words[(at - LIST_BUS) / 8];
		}
		if (i == k)
			return word;
	}
}

static void prps_name_every_page_in_order(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int round = 0; round < 3000; round++) {
		struct tn_nvme_piece piece[40];
		struct tn_nvme_command c = tn_nvme_transfer(TN_NVME_READ, 1, 7, 9);
		uint32_t n = 1 + tn_rng_below(&rng, 40);
		uint64_t entries, k = 0;

		for (uint32_t i = 0; i < n; i++) {
			uint64_t pages = 1 + tn_rng_below(&rng, round % 10 ? 6 : 40);
			uint64_t skip = i == 0 ? tn_rng_below(&rng, TN_NVME_PAGE / 4) * 4ull : 0;
			uint64_t cut = i + 1 == n ? tn_rng_below(&rng, TN_NVME_PAGE - (pages == 1 ? (uint32_t)skip : 0)) : 0;

			piece[i].bus = ((1ull + tn_rng_below(&rng, 1u << 30)) << 12) + skip;
			piece[i].length = pages * TN_NVME_PAGE - skip - cut;
		}
		entries = tn_nvme_prps(piece, n);
		assert_true(entries > 0);
		if (tn_nvme_prp_pages(entries) > LIST_PAGES) {
			assert_int_equal(tn_nvme_set_prps(&c, piece, n, &list), -E2BIG);
			continue;
		}
		assert_int_equal(tn_nvme_set_prps(&c, piece, n, &list), 0);
		assert_int_equal(c.flags, 0);
		for (uint32_t i = 0; i < n; i++)
			for (uint64_t at = piece[i].bus; at < piece[i].bus + piece[i].length; at = (at / TN_NVME_PAGE + 1) * TN_NVME_PAGE)
				assert_true(prp(&c, k++, entries) == at);
		assert_int_equal(k, entries);
	}
}

static void what_prps_cannot_name_is_refused(void **state)
{
	const struct tn_nvme_piece good[] = {{0x1200, 0xe00}, {0x9000, 0x1000}, {0x5000, 0x200}};
	struct tn_nvme_command c = tn_nvme_flush(1);
	struct tn_nvme_piece p[3];

	assert_int_equal(tn_nvme_set_prps(&c, good, 3, &list), 0);
	for (int wrong = 0; wrong < 5; wrong++) {
		memcpy(p, good, sizeof(p));
		p[0].bus += wrong == 0 ? 2 : 0;	      /* not a dword */
		p[0].length -= wrong == 1 ? 0x200 : 0; /* ends before its page does */
		p[1].bus += wrong == 2 ? 0x200 : 0;    /* begins behind its page */
		p[1].length += wrong == 3 ? 0x200 : 0;
		p[2].length *= wrong != 4;
		assert_int_equal(tn_nvme_set_prps(&c, p, 3, &list), -EINVAL);
	}
	assert_int_equal(tn_nvme_set_prps(&c, p, 0, &list), -EINVAL);
}

static void list_pages_are_counted_as_they_are_used(void **state)
{
	static const struct {
		uint64_t entries, pages;
	} cases[] = {{1, 0}, {2, 0}, {3, 1}, {513, 1}, {514, 2}, {1024, 2}, {1025, 3}, {1535, 3}, {1536, 4}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct tn_nvme_piece p = {0x10000000, cases[i].entries * TN_NVME_PAGE};
		struct tn_nvme_list some = {words, LIST_BUS, (uint32_t)cases[i].pages * TN_NVME_PAGE};
		struct tn_nvme_command c = tn_nvme_flush(1);

		assert_int_equal(tn_nvme_prps(&p, 1), cases[i].entries);
		assert_int_equal(tn_nvme_prp_pages(cases[i].entries), cases[i].pages);
		words[cases[i].pages * TN_NVME_PRPS_PER_PAGE % (LIST_PAGES * TN_NVME_PRPS_PER_PAGE)] = 0x5a5a;
		assert_int_equal(tn_nvme_set_prps(&c, &p, 1, &some), 0);
		if (cases[i].pages < LIST_PAGES)
			assert_int_equal(words[cases[i].pages * TN_NVME_PRPS_PER_PAGE], 0x5a5a);
		if (cases[i].pages > 0) {
			some.bytes -= TN_NVME_PAGE;
			assert_int_equal(tn_nvme_set_prps(&c, &p, 1, &some), -E2BIG);
		}
	}
}

static void an_sgl_names_pieces_anywhere(void **state)
{
	const struct tn_nvme_piece p[] = {{0x1201, 0x33}, {0x777, 0x5000}, {0x9000, 4}};
	const struct tn_nvme_sgl *segment = (const struct tn_nvme_sgl *)(const void *)words;
	struct tn_nvme_command c = tn_nvme_transfer(TN_NVME_WRITE, 3, 1ull << 33, 65536);
	struct tn_nvme_list small = {words, LIST_BUS, 32};
	struct tn_nvme_piece huge = {0x1000, 1ull << 32};
	struct tn_nvme_sgl d;

	assert_int_equal(c.dword10, 0);
	assert_int_equal(c.dword11, 2);
	assert_int_equal(c.dword12, 65535);
	assert_int_equal(tn_nvme_set_sgl(&c, p, 1, &list), 0);
	memcpy(&d, c.data, sizeof(d));
	assert_true(d.address == 0x1201 && d.length == 0x33 && d.type == TN_NVME_SGL_DATA);
	assert_int_equal(tn_nvme_set_sgl(&c, p, 3, &list), 0);
	memcpy(&d, c.data, sizeof(d));
	assert_true(d.address == LIST_BUS && d.length == 48 && d.type == TN_NVME_SGL_LAST_SEGMENT);
	for (int i = 0; i < 3; i++)
		assert_true(segment[i].address == p[i].bus && segment[i].length == p[i].length && segment[i].type == TN_NVME_SGL_DATA);
	assert_int_equal(c.flags, TN_NVME_FLAG_SGL);
	assert_int_equal(tn_nvme_set_sgl(&c, p, 3, &small), -E2BIG);
	assert_int_equal(tn_nvme_set_sgl(&c, &huge, 1, &list), -EINVAL);
	assert_int_equal(tn_nvme_set_sgl(&c, p, 0, &list), -EINVAL);
}

static void pieces_that_lie_in_the_list_are_an_sgl_as_if_they_had_been_copied(void **state)
{
	struct tn_nvme_piece piece[3] = {{0x1004, 4096}, {0x9000, 0xfffff000}, {0x20000, 4}}, place[3];
	struct tn_nvme_sgl copied[3];
	struct tn_nvme_command a = tn_nvme_flush(1), b = a;
	const struct tn_nvme_list copy = {copied, 0x5000, sizeof(copied)}, same = {place, 0x5000, sizeof(place)};

	memcpy(place, piece, sizeof(place));
	for (uint32_t n = 1; n <= 3; n += 2) {
		assert_int_equal(tn_nvme_set_sgl(&a, piece, n, &copy), 0);
		assert_int_equal(tn_nvme_set_sgl(&b, place, n, &same), 0);
		assert_memory_equal(&a, &b, sizeof(a));
	}
	assert_memory_equal(copied, place, sizeof(copied));
}

static void pages_that_are_listed_already_are_named_like_pieces_of_a_page(void **state)
{
	static uint64_t pages[TN_NVME_PRPS_PER_PAGE];
	static struct tn_nvme_piece piece[TN_NVME_PRPS_PER_PAGE];
	const struct tn_nvme_list listed = {pages, 0x5000, sizeof(pages)};

	for (uint32_t n = 1; n <= TN_NVME_PRPS_PER_PAGE; n++) {
		struct tn_nvme_command a = tn_nvme_flush(1), b = a;

		piece[n - 1] = (struct tn_nvme_piece){n * 3ull * TN_NVME_PAGE, TN_NVME_PAGE};
		pages[n - 1] = piece[n - 1].bus;
		tn_nvme_set_listed_prps(&a, n, &listed);
		assert_int_equal(tn_nvme_set_prps(&b, piece, n, &list), 0);
		assert_true(a.data[0] == b.data[0]);
		if (n <= 2) {
			assert_true(a.data[1] == b.data[1]);
			continue;
		}
		assert_true(a.data[1] == 0x5008 && b.data[1] == LIST_BUS);
		assert_memory_equal(pages + 1, words, (n - 1) * sizeof(*words));
	}
}

/* ---- queues --------------------------------------------------------------------------------------------------- */

#define ENTRIES_MAX 64u

/* A pair, and a controller that makes one access to shared memory per step. */
struct model {
	struct tn_nvme_queue q;
	struct tn_nvme_command sq[ENTRIES_MAX];
	struct tn_nvme_completion cq[ENTRIES_MAX];
	uint32_t sq_bell, cq_bell;
	uint16_t free[ENTRIES_MAX];
	/* the controller */
	uint32_t fetched, posted, phase, half; /* half: the dwords before the phase are written */
	uint32_t under_way[ENTRIES_MAX], nunder, ended; /* ids that were fetched; ended: chosen for the next completion */
	/* the host */
	uint32_t sent, got, want, expected[ENTRIES_MAX]; /* by id: what it was sent with, plus one */
};

static void model_init(struct model *m, uint32_t entries, uint32_t want)
{
	memset(m, 0, sizeof(*m));
	m->q = (struct tn_nvme_queue){.sq = m->sq, .cq = m->cq, .sq_bell = &m->sq_bell, .cq_bell = &m->cq_bell, .free = m->free, .entries = entries};
	m->phase = 1;
	m->want = want;
	tn_nvme_queue_init(&m->q);
}

static uint32_t index_of(const struct model *m, uint32_t id)
{
	uint32_t index = tn_nvme_queue_index(&m->q, id);

	assert_true(index < m->q.entries - 1);
	return index;
}

/* The controller's next access, if it can make one. */
static bool controller_step(struct model *m, uint32_t pick)
{
	uint32_t *dword = (uint32_t *)(void *)&m->cq[m->posted];

	if (m->half) {
		uint32_t id = m->under_way[m->ended];

		tn_ring_store32(&dword[3], id | m->phase << 16);
		m->under_way[m->ended] = m->under_way[--m->nunder];
		m->half = 0;
		if (++m->posted == m->q.entries) {
			m->posted = 0;
			m->phase ^= 1;
		}
		return true;
	}
	if (m->nunder && (pick & 1)) {
		assert_true((m->posted + 1) % m->q.entries != tn_ring_load32(&m->cq_bell)); /* never full */
		m->ended = (pick >> 1) % m->nunder;
		dword[0] = m->expected[index_of(m, m->under_way[m->ended])] - 1 + 1000;
		m->half = 1;
		return true;
	}
	if (m->fetched != tn_ring_load32(&m->sq_bell)) {
		const struct tn_nvme_command *c = &m->sq[m->fetched];

		assert_true(c->dword10 == m->expected[index_of(m, c->id)] - 1); /* whole, and not one of before */
		m->under_way[m->nunder++] = c->id;
		m->fetched = (m->fetched + 1) % m->q.entries;
		return true;
	}
	return false;
}

static bool host_put(struct model *m)
{
	struct tn_nvme_command c = tn_nvme_flush(1);
	uint32_t id;

	if (m->sent == m->want)
		return false;
	id = tn_nvme_queue_id(&m->q);
	if (id == TN_NVME_NO_ID)
		return false;
	assert_int_equal(m->expected[index_of(m, id)], 0);
	m->expected[index_of(m, id)] = ++m->sent;
	c.id = (uint16_t)id;
	c.dword10 = m->sent - 1;
	tn_nvme_queue_put(&m->q, &c);
	return true;
}

static bool host_poll(struct model *m)
{
	struct tn_nvme_completion done;

	if (!tn_nvme_queue_poll(&m->q, &done))
		return false;
	assert_true(m->expected[index_of(m, done.id)] > 0);
	assert_int_equal(done.result, m->expected[index_of(m, done.id)] - 1 + 1000);
	m->expected[index_of(m, done.id)] = 0;
	tn_nvme_queue_give(&m->q, done.id);
	m->got++;
	return true;
}

/* One step of the host, 0..3, or of the controller, with any number from 4 on; whether it did anything. */
static bool model_step(struct model *m, uint32_t which)
{
	uint32_t before = m->q.taken;

	switch (which) {
	case 0:
		return host_put(m);
	case 1:
		return tn_nvme_queue_ring(&m->q);
	case 2:
		return host_poll(m);
	case 3:
		tn_nvme_queue_took(&m->q);
		return m->q.taken != before;
	default:
		return controller_step(m, which - 4);
	}
}

static uint64_t leaves, states_seen;

/* Tries every step in every state. Copies of a model point at their own memory. */
static void every_order(const struct model *m)
{
	bool any = false;

	states_seen++;
	for (uint32_t which = 0; which < 8; which++) {
		struct model next = *m;

		next.q.sq = next.sq;
		next.q.cq = next.cq;
		next.q.sq_bell = &next.sq_bell;
		next.q.cq_bell = &next.cq_bell;
		next.q.free = next.free;
		if (which > 5 && (m->nunder < 2 || m->half)) /* another choice is the same one */
			continue;
		if (which == 5 && (m->nunder == 0 || m->half))
			continue;
		if (!model_step(&next, which))
			continue;
		any = true;
		every_order(&next);
	}
	if (!any) {
		leaves++;
		assert_int_equal(m->got, m->want); /* nobody waits for ever */
	}
}

static void every_order_of_a_few_commands_is_right(void **state)
{
	static const struct {
		uint32_t entries, want;
	} cases[] = {{2, 4}, {3, 3}, {4, 2}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct model m;

		leaves = states_seen = 0;
		model_init(&m, cases[i].entries, cases[i].want);
		every_order(&m);
		printf("# %u entries, %u commands: %llu orders, %llu states\n", cases[i].entries, cases[i].want, (unsigned long long)leaves,
		       (unsigned long long)states_seen);
		assert_true(leaves > 0);
	}
}

static void an_id_comes_again_after_many_uses(void **state)
{
	static const struct {
		uint32_t entries, uses;
	} cases[] = {{2, 32768}, {64, 1024}, {65, 512}, {4096, 16}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		static uint16_t ids[TN_NVME_ENTRIES_MAX];
		struct tn_nvme_queue q = {.free = ids, .entries = cases[i].entries};
		uint32_t first, id, uses = 0;

		tn_nvme_queue_init(&q);
		first = tn_nvme_queue_id(&q);
		for (id = first; uses == 0 || id != first; uses++) {
			tn_nvme_queue_give(&q, id);
			id = tn_nvme_queue_id(&q);
			assert_int_equal(tn_nvme_queue_index(&q, id), tn_nvme_queue_index(&q, first));
		}
		assert_int_equal(uses, cases[i].uses);
	}
}

/*
 * How often each step of the host is tried, and the controller's: another mood every few hundred steps, so that queues fill and empty. With the
 * odd numbers the controller ends what is under way, with the even ones it may only fetch.
 */
struct mood {
	uint32_t weight[6], sum, left;
};

static uint32_t next_step(struct mood *mood, struct tn_rng *rng)
{
	uint32_t which = 0, at;

	if (mood->left == 0) {
		mood->left = 1 + tn_rng_below(rng, 400);
		mood->sum = 0;
		for (uint32_t i = 0; i < 6; i++) {
			mood->weight[i] = tn_rng_below(rng, 6) + (i == 0); /* so that the sum is none of 0 */
			mood->sum += mood->weight[i];
		}
	}
	mood->left--;
	for (at = tn_rng_below(rng, mood->sum); at >= mood->weight[which]; which++)
		at -= mood->weight[which];
	return which < 4 ? which : 4 + 2 * tn_rng_below(rng, ENTRIES_MAX) + (which == 5);
}

static void random_orders(uint64_t seed, uint32_t entries, uint32_t want, uint64_t *full)
{
	static struct model m;
	struct mood mood = {0};
	struct tn_rng rng;
	uint64_t steps = 0;

	tn_rng_seed(&rng, seed);
	model_init(&m, entries, want);
	for (; m.got < m.want; steps++) {
		if (steps == 10000000)
			fail_msg("TN_SEED=%llu: %u entries: %u of %u commands ended", (unsigned long long)seed, entries, m.got, m.want);
		model_step(&m, next_step(&mood, &rng));
		*full += m.q.nfree == 0;
	}
}

/* Each number of entries, with one seed; in the long form with a hundred. */
static void random_orders_of_many_commands_are_right(void **state)
{
	uint64_t seeds = tn_test_soak() ? 100 : 1;

	for (uint32_t entries = 2; entries <= ENTRIES_MAX; entries++) {
		uint64_t full = 0;

		for (uint64_t i = 0; i < seeds; i++)
			random_orders(tn_test_seed() + i, entries, 4000, &full);
		assert_true(full > 0); /* all ids were in use */
	}
	printf("# %llu schedules of 4000 commands, on 2 to %u entries\n", (unsigned long long)seeds * (ENTRIES_MAX - 1), ENTRIES_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prps_name_every_page_in_order),
		cmocka_unit_test(what_prps_cannot_name_is_refused),
		cmocka_unit_test(list_pages_are_counted_as_they_are_used),
		cmocka_unit_test(an_sgl_names_pieces_anywhere),
		cmocka_unit_test(pieces_that_lie_in_the_list_are_an_sgl_as_if_they_had_been_copied),
		cmocka_unit_test(pages_that_are_listed_already_are_named_like_pieces_of_a_page),
		cmocka_unit_test(every_order_of_a_few_commands_is_right),
		cmocka_unit_test(an_id_comes_again_after_many_uses),
		cmocka_unit_test(random_orders_of_many_commands_are_right),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
