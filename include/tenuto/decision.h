/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions of the scheduler: what may go to a device now, what waits, and why. A cache tells them to
 * tn_cache_opts.explain (cache.h).
 */
#ifndef TENUTO_DECISION_H
#define TENUTO_DECISION_H

#include <stdint.h>

#include <tenuto/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a decision of the scheduler let happen. */
enum tn_chosen {
	TN_CHOSE_READ,	/**< reads of one layer of one load go to the device */
	TN_CHOSE_WRITE, /**< a write goes to the device */
	TN_CHOSE_WAIT,	/**< something waits, and is not let go now */
	TN_CHOSE_REFUSE, /**< a save was not begun */
};

/** Why a decision was taken. */
enum tn_reason {
	TN_REASON_ONLY,		    /**< nothing else waits for the device */
	TN_REASON_PRIORITY,	    /**< of a higher priority than what else waits */
	TN_REASON_EARLIEST_NEED,    /**< needed before what else waits */
	TN_REASON_AGED,		    /**< a load that was passed over for too long has a turn */
	TN_REASON_WINDOW,	    /**< as many layers of the load are in flight as may be */
	TN_REASON_WRITES_DRAIN,	    /**< a read waits for the writes in flight */
	TN_REASON_READS_WAIT,	    /**< a write waits: reads wait for the device */
	TN_REASON_READS_IN_FLIGHT,  /**< a write waits: reads are in flight on the device */
	TN_REASON_QUANTUM,	    /**< a write waits: a quantum of writes is in flight */
	TN_REASON_IDLE,		    /**< a write goes: no read waits or is in flight */
	TN_REASON_DECODE,	    /**< a write goes: within an announced decode phase, in larger quanta */
	TN_REASON_MIX_FREE,	    /**< reads and writes go together: the device's measured mix says that it costs nothing */
	TN_REASON_STARVED,	    /**< a write goes although reads wait: the write has waited too long; or a read waits for that */
	TN_REASON_BACKLOG,	    /**< a save is refused: too many bytes wait to be written */
	TN_REASON_SLACK,	    /**< a write goes although reads wait, or a read waits for the write: the read comes soon enough all the same */
	TN_REASONS,
};

/** tn_reason_name - "earliest need", "reads wait", ... Any thread. Return: never NULL. */
TN_API const char *tn_reason_name(uint32_t reason);

/** tn_chosen_name - "read", "write", "wait", "refuse". Any thread. Return: never NULL. */
TN_API const char *tn_chosen_name(uint32_t chosen);

/**
 * struct tn_decision - one decision of the scheduler
 * @time_ns:        CLOCK_MONOTONIC
 * @load:           number of the load since open, from 1; 0: not about one load
 * @layer:          first layer of the load that the decision is about
 * @device:         index into the directories; TN_DEVICES_MAX: all
 * @chosen:         enum tn_chosen
 * @reason:         enum tn_reason
 * @slack_ns:       reads: time until the engine needs the layer (negative: the engine waits already); writes: time until
 *                  the announced slack ends, INT64_MAX if no read is expected; TN_REASON_SLACK: time for which all reads
 *                  that wait may still wait
 * @bytes:          bytes that go, or would have gone
 * @deferred_bytes: bytes that still wait for the device: writes behind reads
 */
struct tn_decision {
	uint64_t time_ns;
	uint64_t load;
	uint32_t layer;
	uint32_t device;
	uint32_t chosen;
	uint32_t reason;
	int64_t slack_ns;
	uint64_t bytes;
	uint64_t deferred_bytes;
};

/** tn_explain_fn - receives every decision, on the owner thread; must not block or call back into Tenuto */
typedef void (*tn_explain_fn)(void *arg, const struct tn_decision *decision);

#ifdef __cplusplus
}
#endif
#endif
