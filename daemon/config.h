/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tenutod is told: settings from a table, in a YAML file (config_yaml.c) or by options of the command line.
 *
 * Values are written as on the command line of `tenuto`: 64GiB, 128, true. A mistake is told with the file, the line, the value and what to
 * write instead.
 */
#ifndef TENUTOD_CONFIG_H
#define TENUTOD_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tenuto/cache.h>
#include <yaml.h>

#include "../cli/cli.h"
#include "clients.h"

/* Bytes of an error's text. */
#define CONFIG_WHY 768
/* Most settings. */
#define CONFIG_SETTINGS_MAX 40
/* Of all specs together. */
#define CONFIG_SPECS_BYTES 4096
/* Of a socket's path: sockaddr_un. */
#define CONFIG_SOCKET_BYTES 107

enum config_kind {
	CONFIG_DIRS,   /* struct cli_strings: absolute paths */
	CONFIG_TEXT,   /* const char * */
	CONFIG_SPECS,  /* char [CONFIG_SPECS_BYTES]: texts with ";" between them; "off": none */
	CONFIG_CHOICE, /* const char *, one of the setting's choices */
	CONFIG_LISTEN, /* const char *: a numeric address with its port, or "off" */
	CONFIG_SOCKET, /* const char *: an absolute path, "auto" or "off" */
	CONFIG_PATH,   /* const char *: an absolute path, or "off" */
	CONFIG_SIZE,   /* uint64_t bytes */
	CONFIG_COUNT,  /* uint64_t */
	CONFIG_TIME,   /* uint64_t ms, or "never": max */
	CONFIG_SWITCH, /* bool */
	CONFIG_CLIENTS, /* struct clients */
	CONFIG_SERVE,	/* struct config_serve */
};

struct config;

/**
 * struct config_setting - one setting
 * @help:    comment of --print-config
 * @choices: of CONFIG_CHOICE, ends with NULL
 * @offset:  of the value in struct config
 * @live:    a running daemon takes a new value
 */
struct config_setting {
	const char *name;
	enum config_kind kind;
	size_t offset;
	uint64_t min, max;
	const char *const *choices;
	bool live;
	const char *help;
};

/* By name NULL at the end; in the order of the file that --print-config prints. */
extern const struct config_setting config_settings[];

/* Blocks for other nodes' caches (tenuto/peer.h). */
struct config_serve {
	const char *tcp;	 /* where, or "off" */
	const char *secret_file; /* or "off" */
};

/* The settings. Those without a comment are the options of tn_cache_open (tenuto/cache.h). */
struct config {
	struct cli_strings dirs;
	const char *instance;
	uint64_t host_bytes, disk_bytes;
	bool read_only;
	uint64_t write_bytes_per_day, write_backlog_bytes;
	uint64_t offload_lag_ms, durability_ms;
	const char *policy, *scheduler;
	const char *slack; /* directory of slack tables, or "off" */
	const char *plugins; /* directory of plugins, or "off" */
	const char *cluster_secret_file; /* or "off" */
	const char *offload;
	char remote[CONFIG_SPECS_BYTES]; /* likewise; several have ";" between them */
	const char *events; /* where they are published, or "off" */
	const char *hints_token_file;	 /* likewise */
	uint64_t max_blocks, max_ops, max_op_blocks;
	const char *io_engine;
	uint64_t io_depth, executors, workers;
	uint64_t header_cache_bytes, lock_timeout_ms;
	struct config_serve serve;
	const char *socket;    /* where processes attach, */
	struct clients clients; /* and which; none: those of the daemon's user */
	const char *listen;    /* of the metrics */
	const char *log_level; /* by name */
	/* Where the values come from. */
	uint32_t line[CONFIG_SETTINGS_MAX]; /* by setting, from 1 on; 0: not from the file */
	yaml_document_t document;	    /* holds the texts */
	bool has_document;
};

/* The defaults. */
void config_init(struct config *c);
void config_free(struct config *c);

/* What a file says, over what c has. 0, or -errno and in why the whole message. */
int config_load(struct config *c, const char *path, char *why);
/* The same of the bytes of a file. */
int config_parse(struct config *c, const char *path, const void *text, size_t bytes, char *why);

/* The settings of a client, by name NULL at the end; offsets are in struct client. */
extern const struct config_setting client_settings[];
/* Likewise of CONFIG_SERVE; offsets are in struct config_serve. */
extern const struct config_setting serve_settings[];

/* One value as text, of any kind but lists, to where it belongs: 0, or -EINVAL and in why what is wrong and what to write. Keeps the text. */
int config_value(void *to, const struct config_setting *s, const char *value, char *why);
/* The same of a setting of c, of any kind but CONFIG_DIRS, CONFIG_CLIENTS and CONFIG_SERVE: 0, or -EINVAL and in why what is wrong and what to write. Keeps the text. */
int config_set(struct config *c, const struct config_setting *s, const char *value, char *why);
/* The same of the next one of CONFIG_SPECS, of which there are none before the first. */
int config_add_spec(char *specs, const char *value, char *why);
/* The same of the next one of CONFIG_DIRS. */
int config_add_dir(struct config *c, const struct config_setting *s, const char *value, char *why);

/* Whether the settings make a cache: 0, or -EINVAL and why. */
int config_check(const struct config *c, char *why);

/*
 * Whether what the settings name is there, and this user may use it: directories, their stores, memory, the socket's directory, token files, remote stores
 * (each gets an object, within 10 s for all). 0, or
 * -errno, why, and which setting's value is wrong.
 */
int config_check_paths(const struct config *c, const char **setting, char *why);
/* Of the socket alone. */
int config_check_socket(const char *path, char *why);
/* Of the directory of slack tables alone, which is there or can be made. */
int config_check_slack(const char *path, char *why);
/* Makes the directory of plugins this process's, and checks it: 0, or -errno and why. */
int config_use_plugins(const char *path, char *why);
/* Of a setting; 0: it is not from the file. */
uint32_t config_line(const struct config *c, const char *setting);

/* Prints all settings with comments; config_load of that gives the same ones. */
void config_print(const struct config *c, FILE *out);

/* Whether a setting has the same value in both. */
bool config_same(const struct config_setting *s, const struct config *a, const struct config *b);

/* The options of tn_cache_open; they point into c. */
void config_cache_opts(const struct config *c, struct tn_cache_opts *opts);
enum tn_log_level config_log_level(const struct config *c);

#endif
