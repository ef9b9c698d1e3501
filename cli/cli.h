/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the verbs of the command line share: option tables, exact number parsing, tables,
 * progress bars, errors and exit codes.
 *
 * A verb is a function cmd_x(argc, argv) with argv[0] its own name. It describes itself in one
 * struct cli_verb, which both the parsing and --help use. A verb prints results to stdout
 * (a table, or JSON with --json) and everything else to stderr.
 *
 * Nothing here knows the library beyond its error record.
 */
#ifndef TENUTO_CLI_H
#define TENUTO_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

/* Exit codes of the program. */
enum cli_exit {
	CLI_OK = 0,
	CLI_PROBLEM = 1,     /* the verb ran, and found something wrong (corruption, a failed check) */
	CLI_USAGE = 2,	     /* the command line is wrong, or a file or directory that it names is wrong or not there */
	CLI_ENVIRONMENT = 3, /* the machine does not allow it (no space, no permission, busy), or a signal interrupted it */
};

/* cli_parse: go on and run the verb. */
#define CLI_GO (-1)

enum cli_type {
	CLI_FLAG,     /* bool, no argument */
	CLI_STRING,   /* const char *, not empty */
	CLI_STRINGS,  /* struct cli_strings, may be repeated */
	CLI_COUNT,    /* uint64_t within min..max: digits, then nothing, k, M or G (powers of 1000) */
	CLI_SIZE,     /* uint64_t bytes within min..max: digits, then nothing, B, kB..TB or KiB..TiB */
	CLI_RATE,     /* double, finite and > 0 */
	CLI_GEOMETRY, /* struct cli_geometry: LAYERSxSIZE */
};

#define CLI_STRINGS_MAX 16

struct cli_strings {
	const char *item[CLI_STRINGS_MAX];
	size_t n;
};

struct cli_geometry {
	uint64_t layers;
	uint64_t object_bytes;
};

/**
 * struct cli_opt - one option of a verb; a table of them ends with name NULL
 * @name:   without the dashes
 * @arg:    name of the argument in the help, NULL for a flag
 * @dflt:   the default as the help shows it, NULL for none
 * @help:   one line
 * @offset: offset of the value within the verb's argument struct, which holds the defaults before parsing
 */
struct cli_opt {
	const char *name;
	const char *arg;
	const char *dflt;
	const char *help;
	enum cli_type type;
	size_t offset;
	uint64_t min, max;
};

/**
 * struct cli_verb - how a verb is called
 * @name:     as typed after the program's name, e.g. "store info"; "" of a program without verbs
 * @operands: as shown in the help, e.g. "TRACE.jsonl"
 * @about:    what it does, as one text; printing breaks it into lines
 * @opts:     options, ends with name NULL; --help is added
 */
struct cli_verb {
	const char *name;
	const char *operands;
	const char *about;
	const struct cli_opt *opts;
	int min_operands, max_operands;
};

/**
 * cli_parse - parse argv[1..argc) of a verb
 * @args:      the verb's argument struct, filled with defaults
 * @noperands: out: how many operands there are; they are moved to argv[1..]
 *
 * Return: CLI_GO, or the exit code (--help was printed, or a usage error was).
 */
int cli_parse(const struct cli_verb *verb, int argc, char **argv, void *args, int *noperands);

/* An entry of a table of verbs (main's, or the second level of `store` and `bench`); ends with name NULL. */
struct cli_command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
};

/* Runs the entry that argv[1] names; prints the list for --help, the nearest name for an unknown one. */
int cli_dispatch(const char *program, const char *about, const struct cli_command *commands, int argc, char **argv);

/* The verbs. */
int cmd_replay(int argc, char **argv);
int cmd_workload(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_store(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_profile(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_volume(int argc, char **argv);
int cmd_xfer(int argc, char **argv);
int cmd_events(int argc, char **argv);

/* ---- exact parsing: 0, or -1 with the reason in why (which holds CLI_WHY bytes) ---------------- */

#define CLI_WHY 160
int cli_count(const char *s, uint64_t min, uint64_t max, uint64_t *out, char *why);
int cli_size(const char *s, uint64_t min, uint64_t max, uint64_t *out, char *why);
int cli_rate(const char *s, double *out, char *why);
int cli_parse_geometry(const char *s, struct cli_geometry *out, char *why);

/* The name nearest to s among n, or NULL if none is near. */
const char *cli_nearest(const char *s, const char *const *names, size_t n);

/* ---- errors ------------------------------------------------------------------------------------ */

/* The program's name in help and messages: "tenuto", unless another program sets its own before anything else. */
extern const char *cli_program;
/* From here on messages begin with "tenuto NAME: ", or "tenuto: " if the name is empty; cli_parse calls it. */
void cli_speak_as(const char *name);
/* "tenuto VERB: ..." on stderr; returns code. */
int cli_error(enum cli_exit code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/*
 * The same, followed by the library's detail of the failure rc (fmt NULL: only the detail). The exit code follows from
 * rc.
 */
int cli_fail(int rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Exit code for a negative errno of the library. */
enum cli_exit cli_exit_of(int rc);

/* ---- output ------------------------------------------------------------------------------------ */

/* Prints and releases a JSON value. CLI_OK, or CLI_ENVIRONMENT if stdout cannot be written. */
int cli_json(json_t *value);
/* Flushes stdout; CLI_OK, or CLI_ENVIRONMENT after a message on stderr if something could not be written. */
int cli_finish(int code);

/* Text with units, into buf (at least 32 bytes), which is returned. */
/* A name from outside as UTF-8, cut off at bytes - 1: each byte that is none is written as \xNN. Returns buf. */
char *cli_utf8(char *buf, size_t bytes, const char *text);
char *cli_bytes(char *buf, double bytes);     /* 1.50 GiB */
char *cli_number(char *buf, uint64_t n);      /* 1,234,567 */
char *cli_duration(char *buf, double seconds); /* 350 ms, 12.3 s, 4 min 05 s */

#define CLI_COLUMNS_MAX 12

/*
 * Prints text from column indent on; the caller has filled the columns before it. Breaks lines at blanks, so that none is
 * longer than 80 columns or than the terminal is wide. '\n' ends a line.
 */
void cli_wrap(FILE *out, int indent, const char *text);

/* A table with aligned columns. On a terminal, columns of text (left) are broken so that the table fits. */
struct cli_table {
	size_t columns, cells, capacity;
	char **cell;
	bool left[CLI_COLUMNS_MAX];
};

/* @columns: CLI_COLUMNS_MAX at most (asserted) */
void cli_table_init(struct cli_table *t, size_t columns, const bool *left);
/* Appends the next cell, row by row. */
void cli_table_cell(struct cli_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints the table, with a rule below the heads if there are any, and releases it. */
void cli_table_print(struct cli_table *t, FILE *out, bool head);

/*
 * Progress on stderr: on a terminal a bar, after a second; elsewhere a line every ten seconds.
 * @what:  names what is done; may change between steps
 * @total: 0 if unknown.
 */
struct cli_progress {
	const char *what;
	uint64_t total;
	uint64_t start_ns, shown_ns;
	bool tty, shown;
};

void cli_progress_begin(struct cli_progress *p, const char *what, uint64_t total);
void cli_progress_step(struct cli_progress *p, uint64_t done);
void cli_progress_end(struct cli_progress *p);

/* ---- small things that several verbs need ------------------------------------------------------ */

/* At the start: opens what is closed of stdin, stdout and stderr, so that no other file gets their numbers. */
void cli_hold_streams(void);
uint64_t cli_now_ns(void); /* CLOCK_MONOTONIC */
double cli_cpu_seconds(void); /* user and system, whole process with its kernel workers */
/*
 * After cli_catch_interrupts: whether SIGINT, SIGTERM or SIGHUP came. Another signal, at least a second later, ends the
 * program. What was ignored when the program began stays ignored.
 */
bool cli_interrupted(void);
void cli_catch_interrupts(void);
/*
 * Where a cache of this user's is served unless its owner was told another place: `tenuto.sock` in the first of the directories
 * $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR and /run/tenuto that has (exists) or could have one. False: there is no such directory.
 */
bool cli_default_socket(bool exists, char *path, size_t path_bytes);
/*
 * Makes a scratch directory (lab/scratch.h) in base (NULL: $TMPDIR, else /var/tmp, which is on a disk more likely than /tmp), after those that killed
 * runs left there are removed. 0, or -errno, and path is empty.
 */
int cli_temp_dir(const char *base, char *path, size_t path_bytes);
/*
 * The same in the directory given with --dir, which must exist; without --dir in base. CLI_OK, or the exit code after a
 * message on stderr, and path is empty: there is nothing to remove.
 */
int cli_scratch_dir(const char *given, const char *base, char *path, size_t path_bytes);
/* Whether so many bytes are free where dir lies: CLI_OK, or the exit code after a message on stderr. */
int cli_check_free_bytes(const char *dir, uint64_t bytes);
/*
 * Finds the file of a device model: name is a path, or the name of a model that is shipped. CLI_OK, or the exit code after
 * a message on stderr.
 */
int cli_find_device_model(const char *name, char *path, size_t path_bytes);
/* Whether a drive is named in the place of a directory: "nvme:0000:03:00.0". */
bool cli_is_drive(const char *dir);
/* Which directory before dirs[i] is the same one, under the same name or another; i: none is. */
size_t cli_find_same(const char *const *dirs, size_t i);
/*
 * Whether a path given with option (e.g. "--dir ", or "") is a directory: CLI_OK, or the exit code after a message on
 * stderr.
 */
int cli_check_dir(const char *option, const char *path);
/* The same where a drive will do, too. */
int cli_check_place(const char *option, const char *path);
/*
 * Checks before a long run that a file can be written at its end: CLI_OK, or the exit code after a message on stderr.
 * *made: this call made the file. If nothing is written to it then, cli_forget_file removes it.
 */
int cli_try_file(const char *option, const char *path, bool *made);
void cli_forget_file(const char *path, bool made);
/*
 * Removes a directory with everything in it; does not cross file systems or follow links. 0 or -errno. Signals that
 * would interrupt wait until the removal is done. -EINVAL: the path is empty.
 */
int cli_remove_tree(const char *path);

#endif
