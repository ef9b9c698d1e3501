/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly linked list with a sentinel head. A node that is in no list points to itself. */
#ifndef TN_BASE_LIST_H
#define TN_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tn_list {
	struct tn_list *prev, *next;
};

#define tn_container_of(ptr, type, member) ((type *)((uintptr_t)(ptr) - offsetof(type, member)))

static inline void tn_list_init(struct tn_list *n)
{
	n->prev = n->next = n;
}

static inline bool tn_list_empty(const struct tn_list *head)
{
	return head->next == head;
}

static inline void tn_list_push(struct tn_list *head, struct tn_list *n)
{
	n->prev = head->prev;
	n->next = head;
	head->prev->next = n;
	head->prev = n;
}

static inline void tn_list_push_front(struct tn_list *head, struct tn_list *n)
{
	tn_list_push(head->next, n);
}

static inline void tn_list_del(struct tn_list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	tn_list_init(n);
}

static inline struct tn_list *tn_list_pop(struct tn_list *head)
{
	struct tn_list *n = head->next;

	if (n == head)
		return NULL;
	tn_list_del(n);
	return n;
}

#define tn_list_for_each_safe(pos, tmp, head)                                                      \
	for ((pos) = (head)->next, (tmp) = (pos)->next; (pos) != (head); (pos) = (tmp), (tmp) = (pos)->next)

#endif
