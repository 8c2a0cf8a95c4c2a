// The timeline, the counters and the messages of the native code for Python; see collectives/timeline,
// metrics.py and logs.py.
#ifndef SIRTAKI_MODULE_OBSERVABILITY_H_
#define SIRTAKI_MODULE_OBSERVABILITY_H_

#include <pybind11/pybind11.h>

#include "metrics.h"

namespace sirtaki {

pybind11::dict metrics_as_dict(const Metrics& metrics);

void bind_observability(pybind11::module_* module);

}  // namespace sirtaki

#endif  // SIRTAKI_MODULE_OBSERVABILITY_H_
