/* The release, in one place: `offload --version`, the report and the companion's table carry it. */
#ifndef OFFLOAD_VERSION_H
#define OFFLOAD_VERSION_H
#define OFFLOAD_VERSION "0.1.0"
#endif
