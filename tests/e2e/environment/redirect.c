/* FILE append|write: initialises CUDA, then FILE gets the number of standard error, as a log does that a
   program redirects to, or as the next file does of one that closed it. */
#include <cuda.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
  if (count != 3 || cuInit(0))
    return 2;
  (void)close(STDERR_FILENO);
  const int append = strcmp(words[2], "append") ? 0 : O_APPEND;
  return open(words[1], O_WRONLY | O_CREAT | append, 0600) != STDERR_FILENO;
}
