-- Gives back or renews a holder's permits. ARGV: the hold, 1 to renew, the holder's name (8 bytes). The reply says whether
-- there were any that had not expired. An expired permit may already belong to another holder.
local p = {0, tonumber(ARGV[1])}
local held, wrong = log_of.open(p, KEYS[1])
if type(wrong) == 'table' then return wrong end
if held then wrong = log_of.settle(p, held, ARGV[3], ARGV[2] == '1') and 'yes' or 'no' end
return {time[1], time[2], {wrong}}
