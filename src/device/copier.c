/* SPDX-License-Identifier: Apache-2.0 */
/* See copier.h. */
#include "device/copier.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"

#define WAYS 3u /* the last one is that of checksums, too */
#define STREAMS 4u /* per way: a soft device has a thread for each, and other devices several engines */

struct stream {
	pthread_mutex_t lock;
	void *stream;	    /* the driver's; NULL: it has to be made anew */
	uint32_t under_way; /* shared: copyings */
	int error;	    /* why it takes no more until they are over */
	struct tn_device_piece *piece;
	uint32_t n;
	struct tn_log_limit lines;
};

struct tn_copier {
	const struct tn_device_driver *driver;
	uint32_t device;
	struct tn_copiers *all;
	uint32_t number, users;
	uint32_t lost; /* shared */
	struct stream at[WAYS][STREAMS]; /* by enum tn_device_way */
};

static struct stream *stream_of(const struct tn_copying *c)
{
	return &c->copier->at[c->way][c->stream];
}

static int make(const struct tn_copier *c, struct stream *s)
{
	return c->driver->ops->stream_create(c->driver, c->device, &s->stream);
}

static void unmake(const struct tn_copier *c, struct stream *s)
{
	if (s->stream)
		c->driver->ops->stream_destroy(c->driver, s->stream);
	s->stream = NULL;
}

/* ---- one for each device ------------------------------------------------------------------------------------- */

void tn_copiers_init(struct tn_copiers *all, const struct tn_alloc *alloc, const struct tn_log *log, const struct tn_clock *clock)
{
	*all = (struct tn_copiers){.alloc = alloc, .log = log, .clock = clock};
	tn_pins_init(&all->pins);
	pthread_mutex_init(&all->lock, NULL);
}

void tn_copiers_fini(struct tn_copiers *all)
{
	assert(all->n == 0);
	tn_pins_fini(&all->pins);
	pthread_mutex_destroy(&all->lock);
}

static void destroy(struct tn_copier *c)
{
	const struct tn_alloc *alloc = c->all->alloc;

	for (uint32_t i = 0; i < WAYS * STREAMS; i++) {
		struct stream *s = &c->at[i / STREAMS][i % STREAMS];

		unmake(c, s);
		tn_put(alloc, s->piece, tn_array_bytes(TN_COPIER_PIECES, sizeof(*s->piece)));
		pthread_mutex_destroy(&s->lock);
	}
	tn_put(alloc, c, sizeof(*c));
}

static int create(struct tn_copiers *all, const struct tn_device_driver *driver, uint32_t device, uint32_t number, struct tn_copier **out)
{
	struct tn_copier *c = tn_get(all->alloc, sizeof(*c));
	int rc = 0;

	if (!c)
		return tn_fail(-ENOMEM, "driver %s: no memory for streams", driver->ops->name);
	*c = (struct tn_copier){.driver = driver, .device = device, .all = all, .number = number};
	for (uint32_t i = 0; i < WAYS * STREAMS; i++) {
		struct stream *s = &c->at[i / STREAMS][i % STREAMS];

		pthread_mutex_init(&s->lock, NULL);
		s->piece = tn_get(all->alloc, tn_array_bytes(TN_COPIER_PIECES, sizeof(*s->piece)));
		rc = rc ? rc : s->piece ? make(c, s) : -ENOMEM;
	}
	if (rc)
		tn_fail(rc, "driver %s makes no stream of device %u (error %d)", driver->ops->name, device, rc);
	rc = rc ? rc : tn_pins_join(&all->pins, driver);
	if (rc)
		destroy(c);
	else
		*out = c;
	return rc;
}

int tn_copiers_join(struct tn_copiers *all, const struct tn_device_driver *driver, uint32_t device, struct tn_copier **out)
{
	uint32_t at = 0, empty = 0;
	int rc = 0;

	pthread_mutex_lock(&all->lock);
	while (at < TN_COPIERS_MAX && !(all->at[at] && all->at[at]->driver == driver && all->at[at]->device == device))
		at++;
	while (empty < TN_COPIERS_MAX && all->at[empty])
		empty++;
	if (at == TN_COPIERS_MAX && empty == TN_COPIERS_MAX) {
		rc = tn_fail(-ENOSPC, "driver %s: %u devices have memories already, the most there can be", driver->ops->name, TN_COPIERS_MAX);
	} else if (at == TN_COPIERS_MAX) {
		at = empty;
		rc = create(all, driver, device, at, &all->at[at]);
		__atomic_store_n(&all->n, all->n + (rc == 0), __ATOMIC_RELAXED);
	}
	if (rc == 0) {
		all->at[at]->users++;
		*out = all->at[at];
	}
	pthread_mutex_unlock(&all->lock);
	return rc;
}

void tn_copiers_leave(struct tn_copiers *all, struct tn_copier *c)
{
	pthread_mutex_lock(&all->lock);
	if (--c->users == 0) {
		all->at[c->number] = NULL;
		__atomic_store_n(&all->n, all->n - 1, __ATOMIC_RELAXED);
		tn_pins_leave(&all->pins, c->driver);
		destroy(c);
	}
	pthread_mutex_unlock(&all->lock);
}

bool tn_copiers_stand(const struct tn_copiers *all, uint32_t number, uint64_t now_ns, uint64_t *due_ns)
{
	const struct tn_copier_moves *m = &all->moves[number];
	uint64_t stands_ns = __atomic_load_n(&m->since_ns, __ATOMIC_RELAXED) + TN_COPIER_STANDS_NS;
	bool any = __atomic_load_n(&m->under_way, __ATOMIC_RELAXED);

	*due_ns = any && now_ns < stands_ns ? stands_ns : TN_FOREVER;
	return any && now_ns >= stands_ns;
}

uint32_t tn_copier_number(const struct tn_copier *c)
{
	return c->number;
}

uint32_t tn_copier_share(const struct tn_copier *c, uint32_t all)
{
	uint32_t share = all / (__atomic_load_n(&c->all->n, __ATOMIC_RELAXED) + 1);

	return share ? share : 1;
}

bool tn_copier_lost(const struct tn_copier *copier)
{
	return __atomic_load_n(&copier->lost, __ATOMIC_RELAXED);
}

void tn_copier_moves(const struct tn_copier *c, int32_t more)
{
	struct tn_copier_moves *m = &c->all->moves[c->number];

	if (more < 0 || __atomic_load_n(&m->under_way, __ATOMIC_RELAXED) == 0)
		__atomic_store_n(&m->since_ns, tn_now_ns(c->all->clock), __ATOMIC_RELAXED);
	__atomic_fetch_add(&m->under_way, (uint32_t)more, __ATOMIC_RELAXED);
}

/* ---- copyings -------------------------------------------------------------------------------------------------- */

void tn_copying_begin(struct tn_copying *c, struct tn_copier *copier, enum tn_device_way way)
{
	uint32_t least = 0;
	struct stream *s;

	for (uint32_t i = 1; i < STREAMS; i++)
		if (__atomic_load_n(&copier->at[way][i].under_way, __ATOMIC_RELAXED) < __atomic_load_n(&copier->at[way][least].under_way, __ATOMIC_RELAXED))
			least = i;
	s = &copier->at[way][least];
	pthread_mutex_lock(&s->lock);
	if (s->error && s->under_way == 0) {
		unmake(copier, s);
		s->error = 0;
	}
	if (!s->error && !s->stream)
		s->error = make(copier, s);
	s->n = 0;
	*c = (struct tn_copying){.copier = copier, .way = way, .stream = least, .error = s->error};
}

static void call(struct tn_copying *c, struct stream *s)
{
	const struct tn_device_driver *driver = c->copier->driver;

	if (s->n > 0 && !c->error) {
		if (c->sum)
			c->error = driver->ops->sum(driver, s->stream, s->piece, c->sum, c->nsums, &c->event);
		else
			c->error = driver->ops->copy(driver, s->stream, c->way, s->piece, s->n, &c->event);
		c->begun |= !c->error;
	}
	s->n = 0;
}

static void add(struct tn_copying *c, void *device, void *other, uint64_t bytes)
{
	struct stream *s = stream_of(c);

	if (s->n == TN_COPIER_PIECES)
		call(c, s);
	s->piece[s->n++] = (struct tn_device_piece){.device = device, .other = other, .bytes = bytes};
	c->bytes += bytes;
}

void tn_copying_add(struct tn_copying *c, const struct iovec *device, uint32_t n, unsigned char *row)
{
	for (uint32_t i = 0; i < n; i++) {
		add(c, device[i].iov_base, row, device[i].iov_len);
		row += device[i].iov_len;
	}
}

void tn_copying_add_within(struct tn_copying *c, const struct iovec *to, uint32_t nto, const struct iovec *from, uint32_t nfrom)
{
	size_t done_to = 0, done_from = 0; /* of the pieces in hand */

	for (uint32_t i = 0, k = 0; i < nto && k < nfrom;) {
		size_t left_to = to[i].iov_len - done_to, left_from = from[k].iov_len - done_from;
		size_t bytes = left_to < left_from ? left_to : left_from;

		add(c, (unsigned char *)to[i].iov_base + done_to, (unsigned char *)from[k].iov_base + done_from, bytes);
		done_to = bytes == left_to ? 0 : done_to + bytes;
		done_from = bytes == left_from ? 0 : done_from + bytes;
		i += bytes == left_to;
		k += bytes == left_from;
	}
}

void tn_copying_begin_sums(struct tn_copying *c, struct tn_copier *copier, struct tn_device_sum *sum)
{
	tn_copying_begin(c, copier, TN_DEVICE_WITHIN);
	c->sum = sum;
}

void tn_copying_add_sum(struct tn_copying *c, const struct iovec *device, uint32_t n)
{
	struct stream *s = stream_of(c);

	c->sum[c->nsums++] = (struct tn_device_sum){.npieces = n};
	if (n > TN_COPIER_PIECES - s->n)
		c->error = c->error ? c->error : -E2BIG;
	for (uint32_t i = 0; i < n && !c->error; i++) {
		s->piece[s->n++] = (struct tn_device_piece){.device = device[i].iov_base, .bytes = device[i].iov_len};
		c->bytes += device[i].iov_len;
	}
}

void tn_copying_go(struct tn_copying *c)
{
	struct stream *s = stream_of(c);

	call(c, s);
	__atomic_store_n(&s->under_way, s->under_way + 1, __ATOMIC_RELAXED);
	tn_copier_moves(c->copier, 1);
	pthread_mutex_unlock(&s->lock);
}

static void log_failure(const struct tn_copying *c, struct stream *s, int error)
{
	static const struct {
		const char *where, *what;
	} ways[WAYS] = {{"from memory", "they are not saved"}, {"to memory", "they are not loaded"}, {"within memory", "they stay where they are"}};
	const struct tn_copier *copier = c->copier;

	if (!tn_log_may(&s->lines, copier->all->log, tn_now_ns(copier->all->clock)))
		return;
	if (c->sum)
		tn_log(copier->all->log, TN_LOG_WARN, "driver %s did not sum %llu bytes in memory of its device %u (error %d): they are neither loaded nor saved",
		       copier->driver->ops->name, (unsigned long long)c->bytes, copier->device, error);
	else
		tn_log(copier->all->log, TN_LOG_WARN, "driver %s did not copy %llu bytes %s of its device %u (error %d): %s",
		       copier->driver->ops->name, (unsigned long long)c->bytes, ways[c->way].where, copier->device, error, ways[c->way].what);
}

/* A driver has less place for checksums than for copies. */
static bool has_no_place(const struct tn_copying *c, int error)
{
	return c->sum && !c->begun && (error == -EAGAIN || error == -E2BIG);
}

bool tn_copying_over(struct tn_copying *c, int *rc)
{
	const struct tn_device_driver *driver = c->copier->driver;
	struct stream *s = stream_of(c);

	pthread_mutex_lock(&s->lock);
	*rc = c->begun ? driver->ops->wait(driver, s->stream, c->event, 0) : 0;
	if (*rc == -ETIMEDOUT) {
		pthread_mutex_unlock(&s->lock);
		return false;
	}
	*rc = c->error ? c->error : *rc;
	__atomic_store_n(&s->under_way, s->under_way - 1, __ATOMIC_RELAXED);
	tn_copier_moves(c->copier, -1);
	if (*rc == -ENODEV)
		__atomic_store_n(&c->copier->lost, 1, __ATOMIC_RELAXED);
	if (*rc && !has_no_place(c, *rc)) {
		s->error = *rc;
		log_failure(c, s, *rc);
	}
	pthread_mutex_unlock(&s->lock);
	c->copier = NULL;
	return true;
}
