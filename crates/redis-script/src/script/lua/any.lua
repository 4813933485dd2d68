-- Finds the first limit that admits its cost, and leaves the decision on that one alone to joint.lua; if none does, the decision on
-- all, which denies. A limit may have a block and a line behind all limits, as in joint.lua. The reply has the number of the limit as its fourth
-- part, or 0.
local count, limits, chosen, besides = #KEYS, 0, 0, {}
for i = 1, count do
  if kind_of(i).beside then
    local of = tonumber(ARGV[3 * i])
    besides[of] = besides[of] or {}
    table.insert(besides[of], i)
  else
    limits = i
  end
end
for i = 1, limits do
  local cost = tonumber(ARGV[3 * i])
  local admits = chosen == 0 and fits(i, cost) == cost
  for _, beside in ipairs(besides[i] or {}) do admits = admits and fits(beside, cost) == cost end
  if admits then chosen = i end
end
wants_more = nil
if chosen > 0 then
  local of = besides[chosen] or {}
  KEYS[1], count = KEYS[chosen], 1 + #of
  for n = 1, 3 do ARGV[n] = ARGV[3 * chosen - 3 + n] end
  for n, beside in ipairs(of) do
    KEYS[n + 1], ARGV[3 * n + 1], ARGV[3 * n + 2], ARGV[3 * n + 3] = KEYS[beside], ARGV[3 * beside - 2], ARGV[3 * beside - 1], '1'
  end
end
