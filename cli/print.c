/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the user sees: errors, numbers with units, progress bars, JSON. Tables are in table.c.
 *
 * Results go to stdout, everything else to stderr. A full disk under stdout is an error too.
 */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <tenuto/error.h>

const char *cli_program = "tenuto";
static const char *verb = ""; /* as typed; empty before one is known */

void cli_speak_as(const char *name)
{
	verb = name;
}

/* A progress bar stands on the line; messages may come from the library's threads. */
static atomic_bool bar_shown;

#define CLEAR_LINE "\r\033[K"

static void begin_message(void)
{
	if (bar_shown)
		fputs(CLEAR_LINE, stderr);
	fprintf(stderr, "%s%s%s: ", cli_program, *verb ? " " : "", verb);
}

int cli_error(enum cli_exit code, const char *fmt, ...)
{
	va_list ap;

	begin_message();
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	return code;
}

enum cli_exit cli_exit_of(int rc)
{
	switch (-rc) {
	case 0:
		return CLI_OK;
	case EINVAL:
	case ENOENT:
	case ENOTDIR:
	case EISDIR:
	case ELOOP:
	case ENAMETOOLONG:
	case EOVERFLOW:
	case ERANGE:
		return CLI_USAGE;
	case EUCLEAN:
	case EBADMSG:
	case EPROTONOSUPPORT:
	case EXDEV:
		return CLI_PROBLEM;
	default:
		return CLI_ENVIRONMENT;
	}
}

int cli_fail(int rc, const char *fmt, ...)
{
	const struct tn_error *e = tn_error_last();
	va_list ap;

	begin_message();
	va_start(ap, fmt);
	if (fmt) {
		vfprintf(stderr, fmt, ap);
		fputs(": ", stderr);
	}
	va_end(ap);
	if (e->code == rc && cli_exit_of(rc) == CLI_USAGE) /* the library's text says what to change */
		fprintf(stderr, "%s\n", e->text);
	else if (e->code == rc)
		fprintf(stderr, "%s (%s)\n", e->text, strerrorname_np(-rc));
	else
		fprintf(stderr, "%s\n", strerror(-rc));
	return (int)cli_exit_of(rc);
}

int cli_finish(int code)
{
	if (fflush(stdout) || ferror(stdout)) {
		if (errno != EPIPE) /* `tenuto ... | head` has seen what it wanted */
			cli_error(CLI_ENVIRONMENT, "cannot write the result: %s", strerror(errno));
		return code ? code : CLI_ENVIRONMENT;
	}
	return code;
}

int cli_json(json_t *value)
{
	if (!value)
		return cli_error(CLI_ENVIRONMENT, "out of memory for the result");
	json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
	json_decref(value);
	putchar('\n');
	return cli_finish(CLI_OK);
}

/* Bytes of the character at s, 1 to 4; 0: it is no UTF-8 (RFC 3629: no longer form than needed, no surrogates, nothing beyond U+10FFFF). */
static size_t character_bytes(const unsigned char *s)
{
	size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;

	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))
		return 0;
	return n;
}

char *cli_utf8(char *buf, size_t bytes, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	size_t at = 0;

	while (*s && at + 5 <= bytes) {
		size_t n = character_bytes(s);

		if (n)
			memcpy(buf + at, s, n);
		else
			snprintf(buf + at, 5, "\\x%02x", *s);
		at += n ? n : 4;
		s += n ? n : 1;
	}
	buf[at] = '\0';
	return buf;
}

char *cli_bytes(char *buf, double bytes)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	size_t i = 0;

	while (bytes >= 1024 && i + 1 < sizeof(unit) / sizeof(unit[0])) {
		bytes /= 1024;
		i++;
	}
	snprintf(buf, 32, i && bytes < 100 ? "%.2f %s" : "%.0f %s", bytes, unit[i]);
	return buf;
}

char *cli_number(char *buf, uint64_t n)
{
	char plain[24];
	int len = snprintf(plain, sizeof(plain), "%" PRIu64, n);
	char *to = buf;

	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*to++ = ',';
		*to++ = plain[i];
	}
	*to = 0;
	return buf;
}

char *cli_duration(char *buf, double s)
{
	if (s < 1e-3)
		snprintf(buf, 32, "%.1f us", s * 1e6);
	else if (s < 1)
		snprintf(buf, 32, "%.1f ms", s * 1e3);
	else if (s < 120)
		snprintf(buf, 32, "%.1f s", s);
	else if (s < 7200)
		snprintf(buf, 32, "%d min %02d s", (int)(s / 60), (int)s % 60);
	else
		snprintf(buf, 32, "%d h %02d min", (int)(s / 3600), (int)(s / 60) % 60);
	return buf;
}

/* ---- progress ---------------------------------------------------------------------------------- */

#define PROGRESS_AFTER_NS 1000000000ull
#define PROGRESS_EVERY_NS 100000000ull
#define PROGRESS_LINES_NS 10000000000ull
#define PROGRESS_WIDTH 20
#define PROGRESS_COLUMNS 80

void cli_progress_begin(struct cli_progress *p, const char *what, uint64_t total)
{
	const uint64_t now = cli_now_ns();

	*p = (struct cli_progress){.what = what, .total = total, .start_ns = now, .shown_ns = now, .tty = isatty(2)};
}

/* In whole seconds: smaller steps would flicker. */
static const char *seconds_text(char *buf, double s)
{
	if (s < 120)
		snprintf(buf, 32, "%.0f s", s);
	else
		cli_duration(buf, s);
	return buf;
}

/* "34 % in 45 s, 87 s left" */
static void progress_text(char *to, size_t bytes, const struct cli_progress *p, double part, double spent)
{
	char a[32], b[32];

	if (!p->total)
		snprintf(to, bytes, "%s", seconds_text(a, spent));
	else if (part > 0.01)
		snprintf(to, bytes, "%.0f %% in %s, %s left", part * 100, seconds_text(a, spent),
			 seconds_text(b, spent / part - spent));
	else
		snprintf(to, bytes, "%.0f %% in %s", part * 100, seconds_text(a, spent));
}

/* Prints one line, over which the next one is printed. The description is cut so that the other texts fit the line. */
static void show_bar(const struct cli_progress *p, double part, const char *text)
{
	char bar[PROGRESS_WIDTH + 1], rest[160];
	struct winsize size = {0};
	int columns = !ioctl(2, TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : PROGRESS_COLUMNS, width;

	for (int i = 0; i < PROGRESS_WIDTH; i++)
		bar[i] = i < (int)(part * PROGRESS_WIDTH) ? '#' : '.';
	bar[PROGRESS_WIDTH] = 0;
	snprintf(rest, sizeof(rest), p->total ? " [%s]  %s" : "%.0s  %s", bar, text);
	width = columns - 1 - (int)strlen(rest);
	fprintf(stderr, CLEAR_LINE "%.*s%s", width > 0 ? width : 0, p->what, rest);
}

void cli_progress_step(struct cli_progress *p, uint64_t done)
{
	const uint64_t now = cli_now_ns();
	const double spent = (double)(now - p->start_ns) * 1e-9;
	const double part = !p->total ? 0 : done >= p->total ? 1 : (double)done / (double)p->total;
	char text[96];

	if (now - p->start_ns < PROGRESS_AFTER_NS || now - p->shown_ns < (p->tty ? PROGRESS_EVERY_NS : PROGRESS_LINES_NS))
		return;
	p->shown_ns = now;
	progress_text(text, sizeof(text), p, part, spent);
	if (p->tty) {
		bar_shown = true;
		p->shown = true;
		show_bar(p, part, text);
		return;
	}
	begin_message();
	if (!verb || strcmp(verb, p->what))
		fprintf(stderr, "%s: ", p->what);
	fprintf(stderr, "%s\n", text);
}

void cli_progress_end(struct cli_progress *p)
{
	if (p->shown)
		fputs(CLEAR_LINE, stderr);
	bar_shown = false;
	p->shown = false;
}
