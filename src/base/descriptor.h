/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that the library keeps never have the numbers of the standard streams. */
#ifndef TN_BASE_DESCRIPTOR_H
#define TN_BASE_DESCRIPTOR_H

/*
 * In a process whose stdin, stdout or stderr is closed, the kernel gives a new file one of the numbers 0 to 2. Then the next message on
 * stderr is written over that file, and a program that opens its streams again closes the file. So whatever stays open goes through here
 * at once: open(), socket(), eventfd() and the like, and what another process sends.
 *
 * fd: a descriptor, or -1 with errno set. Return: the same, or above 2 in its place (close-on-exec); -1 and errno: there is none, and fd is
 * closed. Costs a system call only for 0 to 2. Locks of fcntl(2) are lost, those of flock(2) stay.
 */
int tn_above_streams(int fd);

#endif
