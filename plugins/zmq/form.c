/* SPDX-License-Identifier: Apache-2.0 */
#include "form.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX (1u << 24) /* of a batch */

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void write_text(msgpack_packer *pk, const char *text)
{
	msgpack_pack_str_with_body(pk, text, strlen(text));
}

static uint64_t integer_of(const unsigned char *bytes)
{
	uint64_t value = 0;

	for (int i = 0; i < 8; i++)
		value = value << 8 | bytes[i];
	return value;
}

static void write_hash(msgpack_packer *pk, const unsigned char *hash, size_t bytes)
{
	if (bytes == 0)
		msgpack_pack_nil(pk);
	else if (bytes == 8)
		msgpack_pack_uint64(pk, integer_of(hash));
	else
		msgpack_pack_bin_with_body(pk, hash, bytes);
}

/* TN_TIER_DEVICE to TN_TIER_REMOTE, as vLLM calls them. */
static const char *medium_of(uint8_t tier)
{
	static const char *const medium[] = {"GPU", "GPU", "CPU", "STORAGE", "STORAGE"};

	return tier < sizeof(medium) / sizeof(medium[0]) ? medium[tier] : "STORAGE";
}

static bool is_remote(uint8_t tier)
{
	return tier > 3;
}

/* Whether an event can be told with the one before it: blocks that follow each other in a chain, or leave the same tier. */
static bool goes_on(const struct tn_bus_event *a, const struct tn_bus_event *b)
{
	if (a->kind != b->kind || a->tier != b->tier || a->group != b->group || a->hash_bytes != b->hash_bytes)
		return false;
	return a->kind == TN_BUS_REMOVED || (a->kind == TN_BUS_STORED && a->block_tokens == b->block_tokens && a->ntokens == b->ntokens &&
					     b->parent_bytes == a->hash_bytes && memcmp(b->parent, a->hash, a->hash_bytes) == 0);
}

static uint32_t run_of(const struct tn_bus_event *events, uint32_t n)
{
	uint32_t run = 1;

	while (run < n && goes_on(&events[run - 1], &events[run]))
		run++;
	return run;
}

static void write_hashes(msgpack_packer *pk, const struct tn_bus_event *events, uint32_t n)
{
	write_text(pk, "block_hashes");
	msgpack_pack_array(pk, n);
	for (uint32_t i = 0; i < n; i++)
		write_hash(pk, events[i].hash, events[i].hash_bytes);
}

/* What has its default is left out, as vLLM does. */
static void write_where(msgpack_packer *pk, const struct tn_bus_event *e)
{
	if (e->group) {
		write_text(pk, "group_idx");
		msgpack_pack_uint32(pk, e->group);
	}
	if (is_remote(e->tier)) {
		write_text(pk, "locality");
		write_text(pk, "REMOTE");
	}
}

static void write_medium(msgpack_packer *pk, const struct tn_bus_event *e)
{
	write_text(pk, "medium");
	write_text(pk, medium_of(e->tier));
}

static void write_stored(msgpack_packer *pk, const struct tn_bus_event *e, uint32_t n)
{
	msgpack_pack_map(pk, 8 + (e->group != 0) + is_remote(e->tier));
	write_text(pk, "type");
	write_text(pk, "BlockStored");
	write_hashes(pk, e, n);
	write_text(pk, "parent_block_hash");
	write_hash(pk, e->parent, e->parent_bytes);
	write_text(pk, "token_ids");
	msgpack_pack_array(pk, (size_t)n * e->ntokens);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t t = 0; t < e->ntokens; t++)
			msgpack_pack_uint32(pk, e[i].token_ids[t]);
	write_text(pk, "block_size");
	msgpack_pack_uint32(pk, e->block_tokens);
	write_text(pk, "lora_id");
	msgpack_pack_nil(pk);
	write_medium(pk, e);
	write_text(pk, "lora_name");
	msgpack_pack_nil(pk);
	write_where(pk, e);
}

static void write_event(msgpack_packer *pk, const struct tn_bus_event *e, uint32_t n)
{
	if (e->kind == TN_BUS_STORED) {
		write_stored(pk, e, n);
		return;
	}
	if (e->kind == TN_BUS_CLEARED) {
		msgpack_pack_map(pk, 1);
		write_text(pk, "type");
		write_text(pk, "AllBlocksCleared");
		return;
	}
	msgpack_pack_map(pk, 3 + (e->group != 0) + is_remote(e->tier));
	write_text(pk, "type");
	write_text(pk, "BlockRemoved");
	write_hashes(pk, e, n);
	write_medium(pk, e);
	write_where(pk, e);
}

int form_write(msgpack_sbuffer *out, double seconds, const struct tn_bus_event *events, uint32_t n, int64_t rank)
{
	msgpack_packer pk;
	uint32_t runs = 0;

	for (uint32_t i = 0; i < n; i += run_of(events + i, n - i))
		runs++;
	msgpack_packer_init(&pk, out, msgpack_sbuffer_write);
	msgpack_pack_array(&pk, 2 + (rank >= 0));
	msgpack_pack_double(&pk, seconds);
	if (msgpack_pack_array(&pk, runs))
		return -ENOMEM;
	for (uint32_t i = 0, run; i < n; i += run) {
		run = run_of(events + i, n - i);
		write_event(&pk, events + i, run);
	}
	return rank >= 0 && msgpack_pack_int64(&pk, rank) ? -ENOMEM : 0;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static bool is_text(const msgpack_object *o, const char *text)
{
	return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(text) && memcmp(o->via.str.ptr, text, o->via.str.size) == 0;
}

static const msgpack_object *member(const msgpack_object *map, const char *name)
{
	for (uint32_t i = 0; i < map->via.map.size; i++)
		if (is_text(&map->via.map.ptr[i].key, name))
			return &map->via.map.ptr[i].val;
	return NULL;
}

/* A hash as an integer, or as bytes, of which the last ones are taken. 0: it is none of both. */
static uint8_t read_hash(const msgpack_object *o, unsigned char out[TN_BUS_HASH_BYTES])
{
	size_t size;

	if (!o)
		return 0;
	if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER || o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
		for (int i = 0; i < 8; i++)
			out[i] = (unsigned char)(o->via.u64 >> (56 - 8 * i));
		return 8;
	}
	if (o->type != MSGPACK_OBJECT_BIN)
		return 0;
	size = o->via.bin.size < TN_BUS_HASH_BYTES ? o->via.bin.size : TN_BUS_HASH_BYTES;
	memcpy(out, o->via.bin.ptr + o->via.bin.size - size, size);
	return (uint8_t)size;
}

static uint32_t read_number(const msgpack_object *o)
{
	return o && o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= UINT32_MAX ? (uint32_t)o->via.u64 : 0;
}

/* enum tn_tier. Without a medium it is the engine's own memory. */
static uint8_t read_tier(const msgpack_object *event)
{
	const msgpack_object *medium = member(event, "medium"), *locality = member(event, "locality");

	if (locality && is_text(locality, "REMOTE"))
		return 4;
	if (!medium || medium->type != MSGPACK_OBJECT_STR || is_text(medium, "GPU"))
		return 1;
	return is_text(medium, "CPU") ? 2 : 3;
}

static struct tn_bus_event *add(struct form_events *out)
{
	if (out->n == out->max) {
		uint32_t max = out->max ? 2 * out->max : 256;
		struct tn_bus_event *more = max > FORM_EVENTS_MAX ? NULL : realloc(out->event, max * sizeof(*more));

		if (!more)
			return NULL;
		out->event = more;
		out->max = max;
	}
	out->event[out->n] = (struct tn_bus_event){0};
	return &out->event[out->n++];
}

/* Copies token ids to where they stay. -1: no memory. Pointers are set when all are there. */
static int add_tokens(struct form_events *out, const msgpack_object *ids, size_t first, uint32_t n)
{
	if (out->ntokens + n > out->max_tokens) {
		size_t max = 2 * (out->ntokens + n);
		uint32_t *more = max > TOKENS_MAX ? NULL : realloc(out->token_ids, max * sizeof(*more));

		if (!more)
			return -1;
		out->token_ids = more;
		out->max_tokens = max;
	}
	for (uint32_t i = 0; i < n; i++)
		out->token_ids[out->ntokens++] = read_number(&ids->via.array.ptr[first + i]);
	return 0;
}

static int read_stored(const msgpack_object *event, const msgpack_object *hashes, struct form_events *out)
{
	const msgpack_object *ids = member(event, "token_ids"), *before = member(event, "parent_block_hash");
	uint32_t n = hashes->via.array.size, tokens = read_number(member(event, "block_size"));
	bool told = ids && ids->type == MSGPACK_OBJECT_ARRAY && tokens && (uint64_t)n * tokens == ids->via.array.size;

	for (uint32_t i = 0; i < n; i++) {
		struct tn_bus_event *e = add(out);

		if (!e)
			return -ENOMEM;
		e->kind = TN_BUS_STORED;
		e->tier = read_tier(event);
		e->group = read_number(member(event, "group_idx"));
		e->block_tokens = tokens;
		e->hash_bytes = read_hash(&hashes->via.array.ptr[i], e->hash);
		e->parent_bytes = read_hash(before, e->parent);
		before = &hashes->via.array.ptr[i];
		if (e->hash_bytes == 0)
			return -EBADMSG;
		e->ntokens = told ? tokens : 0;
		if (told && add_tokens(out, ids, (size_t)i * tokens, tokens))
			return -ENOMEM;
	}
	return 0;
}

static int read_removed(const msgpack_object *event, const msgpack_object *hashes, struct form_events *out)
{
	for (uint32_t i = 0; i < hashes->via.array.size; i++) {
		struct tn_bus_event *e = add(out);

		if (!e)
			return -ENOMEM;
		e->kind = TN_BUS_REMOVED;
		e->tier = read_tier(event);
		e->group = read_number(member(event, "group_idx"));
		e->hash_bytes = read_hash(&hashes->via.array.ptr[i], e->hash);
		if (e->hash_bytes == 0)
			return -EBADMSG;
	}
	return 0;
}

static int read_event(const msgpack_object *event, struct form_events *out)
{
	const msgpack_object *type = event->type == MSGPACK_OBJECT_MAP ? member(event, "type") : NULL, *hashes;
	struct tn_bus_event *e;

	if (!type)
		return -EBADMSG;
	if (is_text(type, "AllBlocksCleared")) {
		e = add(out);
		if (!e)
			return -ENOMEM;
		e->kind = TN_BUS_CLEARED;
		return 0;
	}
	if (!is_text(type, "BlockStored") && !is_text(type, "BlockRemoved"))
		return 0;
	hashes = member(event, "block_hashes");
	if (!hashes || hashes->type != MSGPACK_OBJECT_ARRAY)
		return -EBADMSG;
	return is_text(type, "BlockStored") ? read_stored(event, hashes, out) : read_removed(event, hashes, out);
}

/* An item that begins with `first`: how its length or count is said, and what follows. */
struct head {
	unsigned char first;
	unsigned char bytes; /* of the length or count; 0: none is said */
	unsigned char items; /* per count; 0: it is a length in bytes */
	unsigned char fixed; /* bytes that follow in any case */
};

static const struct head heads[] = {
	{0xc4, 1, 0, 0}, {0xc5, 2, 0, 0}, {0xc6, 4, 0, 0}, {0xc7, 1, 0, 1}, {0xc8, 2, 0, 1}, {0xc9, 4, 0, 1},
	{0xca, 0, 0, 4}, {0xcb, 0, 0, 8}, {0xcc, 0, 0, 1}, {0xcd, 0, 0, 2}, {0xce, 0, 0, 4}, {0xcf, 0, 0, 8},
	{0xd0, 0, 0, 1}, {0xd1, 0, 0, 2}, {0xd2, 0, 0, 4}, {0xd3, 0, 0, 8}, {0xd4, 0, 0, 2}, {0xd5, 0, 0, 3},
	{0xd6, 0, 0, 5}, {0xd7, 0, 0, 9}, {0xd8, 0, 0, 17}, {0xd9, 1, 0, 0}, {0xda, 2, 0, 0}, {0xdb, 4, 0, 0},
	{0xdc, 2, 1, 0}, {0xdd, 4, 1, 0}, {0xde, 2, 2, 0}, {0xdf, 4, 2, 0},
};

/* Length or count of the item at `at`, of which the first byte was read. *bytes: that follow; *items: that follow. False: too short. */
static bool measure(unsigned char first, const unsigned char *at, size_t left, uint64_t *bytes, uint64_t *items)
{
	uint64_t count = 0;

	*bytes = first >= 0xa0 && first <= 0xbf ? first & 0x1f : 0;
	*items = first >= 0x90 && first <= 0x9f ? first & 0xf : first >= 0x80 && first <= 0x8f ? 2u * (first & 0xf) : 0;
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
		const struct head *h = &heads[i];

		if (first != h->first)
			continue;
		if (h->bytes > left)
			return false;
		for (int k = 0; k < h->bytes; k++)
			count = count << 8 | at[k];
		*bytes = h->bytes + h->fixed + (h->items ? 0 : count);
		*items = h->items * count;
	}
	return true;
}

/*
 * Whether there are as many bytes as the items say. msgpack-c takes memory for an array before it looks for its elements, so a few bytes that
 * claim 2^32 of them would ask for 100 GB.
 */
static bool is_whole(const unsigned char *at, size_t left)
{
	uint64_t wanted = 1, bytes, items;

	while (wanted > 0) {
		unsigned char first;

		if (wanted > left)
			return false;
		first = *at++;
		left--;
		if (!measure(first, at, left, &bytes, &items) || bytes > left)
			return false;
		at += bytes;
		left -= bytes;
		wanted += items - 1;
	}
	return true;
}

static void point_at_tokens(struct form_events *out)
{
	const uint32_t *at = out->token_ids;

	for (uint32_t i = 0; i < out->n; i++) {
		out->event[i].token_ids = out->event[i].ntokens ? at : NULL;
		if (out->event[i].ntokens) /* there may be no tokens at all */
			at += out->event[i].ntokens;
	}
}

int form_read(const void *bytes, size_t size, struct form_events *out)
{
	const msgpack_object *events = NULL;
	msgpack_unpacked unpacked;
	size_t at = 0;
	int rc = -EBADMSG;

	out->n = 0;
	out->ntokens = 0;
	msgpack_unpacked_init(&unpacked);
	if (is_whole(bytes, size) && msgpack_unpack_next(&unpacked, bytes, size, &at) == MSGPACK_UNPACK_SUCCESS) {
		const msgpack_object *root = &unpacked.data;

		if (root->type == MSGPACK_OBJECT_ARRAY && root->via.array.size >= 2)
			events = &root->via.array.ptr[1];
		else if (root->type == MSGPACK_OBJECT_MAP)
			events = member(root, "events");
	}
	if (events && events->type == MSGPACK_OBJECT_ARRAY) {
		rc = 0;
		for (uint32_t i = 0; i < events->via.array.size && rc == 0; i++)
			rc = read_event(&events->via.array.ptr[i], out);
	}
	msgpack_unpacked_destroy(&unpacked);
	point_at_tokens(out);
	return rc;
}

void form_free(struct form_events *events)
{
	free(events->event);
	free(events->token_ids);
	*events = (struct form_events){0};
}
