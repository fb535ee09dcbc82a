/* What PyTorch's headers name of cuSPARSE, for toolkits without it. Only types: nothing here calls it. */
#pragma once
typedef struct cusparseContext *cusparseHandle_t;
typedef enum { CUSPARSE_STATUS_SUCCESS = 0 } cusparseStatus_t;
