-- Raises the cost of a decision on a limit that tenants share by the units that a node takes ahead for the tenant: at most a quarter of what
-- the limit leaves beyond the cost, and what the tenant's share admits. joint.lua decides on the sum then. KEYS and ARGV: as in joint.lua for
-- one limit, and behind them how many units are wanted. The reply has the units as its fourth part.
local count = #KEYS
local cost, granted = tonumber(ARGV[3]), tonumber(ARGV[3 * count + 1])
granted = math.max(math.floor((fits(1, cost + 4 * granted, true) - cost) / 4), 0)
for i = 2, count do granted = math.max(math.min(granted, fits(i, cost + granted) - cost), 0) end
-- A tenant that gets less ahead was not refused.
wants_more = {}
ARGV[3] = string.format('%.0f', cost + granted)
