/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/elf.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#if __ELF_NATIVE_CLASS == 64
#define OWN_CLASS ELFCLASS64
#else
#define OWN_CLASS ELFCLASS32
#endif
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define OWN_DATA ELFDATA2LSB
#else
#define OWN_DATA ELFDATA2MSB
#endif

struct image {
	const unsigned char *file;
	size_t bytes;
	const char *path;
	ElfW(Ehdr) head;
};

/* Copies `bytes` of the file from `at` on: entries need not be aligned. */
static bool copy(const struct image *m, uint64_t at, void *to, size_t bytes)
{
	if (at > m->bytes || bytes > m->bytes - at)
		return false;
	memcpy(to, m->file + at, bytes);
	return true;
}

/* Entry `i` of a table of entries that have `bytes` each. */
static bool copy_entry(const struct image *m, uint64_t table, uint64_t i, void *to, size_t bytes)
{
	return i < m->bytes / bytes && table <= m->bytes && copy(m, table + i * bytes, to, bytes);
}

static int refuse(const struct image *m, const char *why)
{
	return tn_fail(-EPROTO, "'%s' %s", m->path, why);
}

static int read_head(struct image *m)
{
	const unsigned char *id = m->head.e_ident;

	if (!copy(m, 0, &m->head, sizeof(m->head)) || memcmp(id, ELFMAG, SELFMAG))
		return refuse(m, "is no ELF file: build it as a shared object (cc -shared -fPIC)");
	if (id[EI_CLASS] != OWN_CLASS || id[EI_DATA] != OWN_DATA || m->head.e_type != ET_DYN)
		return refuse(m, "is no shared object for this machine: build it here (cc -shared -fPIC)");
	if (m->head.e_shentsize != sizeof(ElfW(Shdr)) || m->head.e_phentsize != sizeof(ElfW(Phdr)))
		return refuse(m, "has no section headers: they are needed to check it, do not remove them (strip keeps them)");
	return 0;
}

static bool has_name(const struct image *m, const ElfW(Shdr) *names, uint64_t at, const char *name)
{
	size_t bytes = strlen(name) + 1;

	return at < names->sh_size && bytes <= names->sh_size - at && names->sh_offset <= m->bytes && at <= m->bytes - names->sh_offset &&
	       bytes <= m->bytes - names->sh_offset - at && memcmp(m->file + names->sh_offset + at, name, bytes) == 0;
}

/* Of a table of symbols: the one that the file defines under this name. */
static bool find_symbol(const struct image *m, const ElfW(Shdr) *table, const char *name, ElfW(Sym) *symbol)
{
	ElfW(Shdr) names;

	if (!copy_entry(m, m->head.e_shoff, table->sh_link, &names, sizeof(names)))
		return false;
	for (uint64_t i = 0; i < table->sh_size / sizeof(*symbol); i++) {
		if (!copy_entry(m, table->sh_offset, i, symbol, sizeof(*symbol)))
			return false;
		if (symbol->st_shndx != SHN_UNDEF && ELF32_ST_TYPE(symbol->st_info) == STT_OBJECT && has_name(m, &names, symbol->st_name, name))
			return true;
	}
	return false;
}

/* The bytes of an address, as the file has them before anything is relocated. */
static bool copy_address(const struct image *m, uint64_t address, void *to, size_t bytes)
{
	ElfW(Phdr) part;

	for (unsigned i = 0; i < m->head.e_phnum && copy_entry(m, m->head.e_phoff, i, &part, sizeof(part)); i++)
		if (part.p_type == PT_LOAD && address >= part.p_vaddr && address - part.p_vaddr < part.p_filesz &&
		    bytes <= part.p_filesz - (address - part.p_vaddr) && part.p_offset <= m->bytes)
			return copy(m, part.p_offset + (address - part.p_vaddr), to, bytes);
	return false;
}

int tn_elf_constant(const void *file, size_t bytes, const char *path, const char *symbol, void *front, size_t front_bytes)
{
	struct image m = {.file = file, .bytes = bytes, .path = path};
	bool found = false, constructors = false;
	ElfW(Shdr) section;
	ElfW(Sym) sym = {0};
	int rc = read_head(&m);

	for (unsigned i = 0; rc == 0 && i < m.head.e_shnum; i++) {
		if (!copy_entry(&m, m.head.e_shoff, i, &section, sizeof(section)))
			return refuse(&m, "ends before its section headers: copy or build it again");
		if (section.sh_type == SHT_DYNSYM && !found)
			found = find_symbol(&m, &section, symbol, &sym);
		constructors |= section.sh_type == SHT_INIT_ARRAY && section.sh_size > sizeof(ElfW(Addr));
	}
	if (rc)
		return rc;
	if (!found)
		return tn_fail(-EPROTO, "'%s' exports no constant %s: it is no plugin of Tenuto, or was built with the symbol hidden", path, symbol);
	if (sym.st_size < front_bytes || !copy_address(&m, sym.st_value, front, front_bytes))
		return tn_fail(-EPROTO, "'%s' has no value for its constant %s in the file: define it const, with its values", path, symbol);
#ifndef SANITIZED
	if (constructors)
		return refuse(&m, "has constructors, which would run before it is checked: build it without (no __attribute__((constructor)), no C++ "
				  "objects with static storage)");
#else
	(void)constructors;
#endif
	return 0;
}
