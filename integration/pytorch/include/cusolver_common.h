/* What PyTorch's headers name of cuSOLVER, for toolkits without it. Only types: nothing here calls it. */
#pragma once
typedef enum { CUSOLVER_STATUS_SUCCESS = 0 } cusolverStatus_t;
