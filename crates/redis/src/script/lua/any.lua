-- Finds the first limit that admits its cost, and leaves the decision on that one alone to joint.lua; if none does, the decision on
-- all, which denies. A limit may have a block behind all limits, as in joint.lua. The reply has the number of the limit as its fourth
-- part, or 0.
local count, limits, chosen, blocks = #KEYS, 0, 0, {}
for i = 1, count do
  if kind_of(i).denied then blocks[tonumber(ARGV[3 * i])] = i else limits = i end
end
for i = 1, limits do
  local cost = tonumber(ARGV[3 * i])
  if chosen == 0 and fits(i, cost) == cost and (not blocks[i] or fits(blocks[i], 1) == 1) then chosen = i end
end
if chosen > 0 then
  local block = blocks[chosen]
  KEYS[1], count = KEYS[chosen], block and 2 or 1
  for n = 1, 3 do ARGV[n] = ARGV[3 * chosen - 3 + n] end
  if block then
    KEYS[2], ARGV[4], ARGV[5], ARGV[6] = KEYS[block], ARGV[3 * block - 2], ARGV[3 * block - 1], '1'
  end
end
