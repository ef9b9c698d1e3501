/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts the power of a store's life that QEMU has logged (store_life.h; the log is that of Linux's dm-log-writes): at each entry of the log everything up to the last flush
 * is on the medium, and of what follows nothing, all, or any logical blocks. The medium becomes the software controller's, the store is
 * opened on it, must have what the guest's last note says, nothing wrong, and after another cut the same again.
 *
 * Usage: replay LOG BYTES BLOCK_BYTES SEED. The short form tries some places of the log; TN_SIM_FULL=1 or TN_SOAK=1 all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "lab/nvme_soft.h"
#include "nvme/engine.h"
#include "store_life.h"

#define LOG_MAGIC 0x6a736677736872ull
#define LOG_FLUSH 1u
#define LOG_DISCARD 4u
#define SECTOR 512u
#define SAMPLE 6u

enum how { NOTHING, ALL, TORN, ANY, HOWS };

/* Documentation/admin-guide/device-mapper/log-writes.rst */
struct log_super {
	uint64_t magic, version, entries;
	uint32_t sector_bytes;
};

struct log_entry {
	uint64_t sector, sectors, flags, data_bytes;
};

struct entry {
	struct log_entry e;
	const unsigned char *data;
};

static struct {
	unsigned char *log, *durable, *image;
	struct entry *entry;
	uint64_t log_bytes, entries, bytes, seed;
	uint32_t block_bytes;
	struct life_note note;
	uint64_t states, found, lost, commands, moved;
} life;

static void stop(const char *what)
{
	fprintf(stderr, "%s (%s)\n", what, tn_error_last()->text);
	exit(1);
}

static void must(bool ok, const char *what)
{
	if (!ok)
		stop(what);
}

/* ---- the log ------------------------------------------------------------------------------------------------------ */

static void read_log(const char *path)
{
	FILE *f = fopen(path, "rb");
	struct log_super super;
	uint64_t at = SECTOR;

	must(f && fseek(f, 0, SEEK_END) == 0, "the log cannot be opened");
	life.log_bytes = (uint64_t)ftell(f);
	rewind(f);
	life.log = malloc(life.log_bytes + 1);
	must(life.log && fread(life.log, 1, life.log_bytes, f) == life.log_bytes && life.log_bytes > SECTOR, "the log cannot be read");
	fclose(f);
	memcpy(&super, life.log, sizeof(super));
	must(super.magic == LOG_MAGIC && super.version == 1 && super.sector_bytes == SECTOR, "this is no log");
	life.entry = calloc(super.entries, sizeof(*life.entry));
	must(life.entry && super.entries, "the log is empty");
	for (; life.entries < super.entries; life.entries++) {
		struct entry *n = &life.entry[life.entries];

		must(at + SECTOR <= life.log_bytes, "the log ends early");
		memcpy(&n->e, life.log + at, sizeof(n->e));
		at += SECTOR;
		n->data = life.log + at;
		at += n->e.flags & LOG_DISCARD ? 0 : n->e.sectors * SECTOR;
		must(at <= life.log_bytes && (n->e.sector + n->e.sectors) * SECTOR <= life.bytes, "the log ends early");
	}
}

static void apply_block(unsigned char *image, const struct entry *n, uint64_t at)
{
	if (n->e.flags & LOG_DISCARD)
		memset(image + n->e.sector * SECTOR + at, 0, life.block_bytes);
	else
		memcpy(image + n->e.sector * SECTOR + at, n->data + at, life.block_bytes);
}

static void apply(unsigned char *image, const struct entry *n)
{
	for (uint64_t at = 0; at < n->e.sectors * SECTOR; at += life.block_bytes)
		apply_block(image, n, at);
}

/* Some blocks of it: the first ones, or any. */
static void apply_some(unsigned char *image, const struct entry *n, enum how how, struct tn_rng *rng)
{
	uint64_t blocks = n->e.sectors * SECTOR / life.block_bytes, first = tn_rng_below(rng, (uint32_t)blocks + 1);

	if (how == ALL || how == NOTHING)
		first = how == ALL ? blocks : 0;
	for (uint64_t i = 0; i < blocks; i++)
		if (how == ANY ? tn_rng_below(rng, 2) : i < first)
			apply_block(image, n, i * life.block_bytes);
}

/* ---- what is found ------------------------------------------------------------------------------------------------- */

static struct tn_nvme *engine_up(struct tn_soft *soft, struct tn_io **io)
{
	struct tn_nvme_opts n = {.port = tn_soft_port(soft), .alloc = &tn_alloc_system, .clock = &tn_clock_system, .queues = 1, .entries = 32};
	struct tn_nvme_engine_opts e = {.port = n.port, .depth = 64, .blocks = (life.bytes - LIFE_NOTES_BYTES) / life.block_bytes, .alloc = &tn_alloc_system,
					.clock = &tn_clock_system};

	must(tn_nvme_create(&n, &e.nvme) == 0 && tn_nvme_engine_create(&e, io) == 0, "no engine");
	return e.nvme;
}

/* Opens the store and looks at it; a sum of what is there. The power goes again. */
static uint64_t check_store(struct tn_soft *soft, uint64_t boot, bool notes_count)
{
	struct tn_nvme_engine_stats stats;
	struct tn_io *io;
	struct tn_nvme *nvme = engine_up(soft, &io);
	struct rig *r = life_rig(io, boot);
	uint64_t sum = 0;

	must(rig_open(r) == 0, "does not open");
	for (uint64_t n = 0; n < LIFE_KEYS; n++) {
		const struct rig_block *b = rig_find(r, n);

		must(!notes_count || !life.note.durable[n] || (b && b->entry.sequence >= life.note.durable[n]), "a durable block is lost");
		must(!notes_count || !life.note.gone[n] || !b, "a removed block is back");
		must(!b || rig_read(r, n) == 0, "a block is found but cannot be read");
		life.found += b != NULL;
		life.lost += !b && !life.note.gone[n];
		sum += b ? tn_hash64(&b->entry.key, 16) ^ b->entry.sequence * 31 ^ b->slot : 0;
	}
	must(!strstr(r->logs, "rebuilding") && !strstr(r->logs, "checkpoint is damaged"), "a cut damaged the index");
	tn_soft_power_cut(soft);
	rig_abandon(r);
	rig_free(r);
	tn_nvme_engine_stats(io, &stats);
	life.commands += stats.commands;
	life.moved += stats.bytes;
	tn_io_destroy(io);
	tn_nvme_destroy(nvme);
	return sum;
}

static void cut(uint64_t entries, uint64_t flushed, enum how how)
{
	struct tn_soft_opts o;
	struct tn_soft *soft;
	struct tn_rng rng;
	uint64_t sum;

	tn_rng_seed(&rng, tn_hash64(&(uint64_t[3]){life.seed, entries, how}, 24));
	memcpy(life.image, life.durable, life.bytes);
	for (uint64_t i = flushed; i < entries; i++)
		apply_some(life.image, &life.entry[i], how == TORN ? (enum how)tn_rng_below(&rng, HOWS) : how, &rng);
	tn_soft_opts_init(&o);
	o.blocks = life.bytes / life.block_bytes;
	o.block_bytes = life.block_bytes;
	o.seed = life.seed + entries;
	must(tn_soft_create(&o, &soft) == 0, "no controller");
	memcpy(tn_soft_media(soft), life.image, life.bytes);
	sum = check_store(soft, 100, true);
	if (check_store(soft, 101, true) != sum)
		stop("recovery twice does not give the same");
	tn_soft_destroy(soft);
	life.states++;
}

/* A note is true from its entry on. */
static void read_note(const struct entry *n)
{
	struct life_note note;

	if (n->e.flags & LOG_DISCARD || n->e.sector * SECTOR != life.bytes - LIFE_NOTES_BYTES || n->e.sectors == 0)
		return;
	memcpy(&note, n->data, sizeof(note));
	must(note.magic == LIFE_MAGIC && note.round >= life.note.round, "the log has a note that is none");
	life.note = note;
}

static bool all_of_them(void)
{
	const char *full = getenv("TN_SIM_FULL"), *soak = getenv("TN_SOAK");

	return (full && *full == '1') || (soak && *soak == '1');
}

int main(int argc, char **argv)
{
	uint64_t flushed = 0, flushes = 0;
	struct tn_rng rng;

	must(argc == 5, "usage: replay LOG BYTES BLOCK_BYTES SEED");
	life.bytes = strtoull(argv[2], NULL, 0);
	life.block_bytes = (uint32_t)strtoul(argv[3], NULL, 0);
	life.seed = strtoull(argv[4], NULL, 0);
	tn_rng_seed(&rng, life.seed);
	read_log(argv[1]);
	life.durable = calloc(1, life.bytes);
	life.image = malloc(life.bytes);
	must(life.durable && life.image, "no memory");
	for (uint64_t i = 0; i < life.entries; i++) {
		read_note(&life.entry[i]);
		if (life.entry[i].e.flags & LOG_FLUSH) {
			for (; flushed <= i; flushed++)
				apply(life.durable, &life.entry[flushed]);
			flushes++;
		}
		if (!all_of_them() && tn_rng_below(&rng, SAMPLE))
			continue;
		for (int how = 0; how < HOWS; how++)
			cut(i + 1, flushed, (enum how)how);
	}
	printf("%llu writes and %llu flushes logged, %llu rounds: %llu power cuts, %llu blocks found, %llu lost that nobody had flushed; %llu commands, %llu MiB\n",
	       (unsigned long long)(life.entries - flushes), (unsigned long long)flushes, (unsigned long long)life.note.round, (unsigned long long)life.states,
	       (unsigned long long)life.found, (unsigned long long)life.lost, (unsigned long long)life.commands, (unsigned long long)(life.moved >> 20));
	must(life.note.round > 0 && life.found > 0 && life.lost > 0, "the life was too short to tell");
	return 0;
}
