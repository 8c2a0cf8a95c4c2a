// The control plane for Python: what the rules in collectives/negotiation.py read, and the state machine for
// tests.
#ifndef SIRTAKI_MODULE_CONTROL_PLANE_H_
#define SIRTAKI_MODULE_CONTROL_PLANE_H_

#include <pybind11/pybind11.h>

#include <vector>

#include "sequencer.h"

namespace sirtaki {

pybind11::dict rare_event_as_dict(const RareEvent& event);
pybind11::list incomplete_as_list(const std::vector<Incomplete>& all);

void bind_control_plane(pybind11::module_* module);

}  // namespace sirtaki

#endif  // SIRTAKI_MODULE_CONTROL_PLANE_H_
