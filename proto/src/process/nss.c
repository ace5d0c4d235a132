/*
 * Keeps a statically linked program away from the machine's own NSS modules.
 *
 * Names are looked up (a host in getaddrinfo, a user in getpwnam) through the modules that /etc/nsswitch.conf lists:
 * libnss_myhostname, libnss_resolve, libnss_sss and so on. A static glibc loads them with dlopen, and with them the
 * machine's libc, which is not the one linked in here: on Debian 13 a program built on Debian 12 dies of SIGFPE in the
 * first look-up. "files" and "dns" are part of libc itself since glibc 2.34 and load nothing. So a static program asks
 * only these two, whatever the machine's configuration says: /etc/hosts and the name servers of /etc/resolv.conf.
 *
 * A constructor, because the choice must be made before the first look-up of any thread. In C, because our Rust has no
 * `unsafe`. ../../build.rs compiles this only into static builds: others share the machine's libc and its modules.
 */
#include <nss.h>

__attribute__((constructor)) static void use_built_in_sources(void)
{
	__nss_configure_lookup("hosts", "files dns");
	__nss_configure_lookup("passwd", "files");
	__nss_configure_lookup("group", "files");
	__nss_configure_lookup("services", "files");
	__nss_configure_lookup("protocols", "files");
}
