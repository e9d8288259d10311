-- During a gap no waiter gets the lock: it counts as held by a client of another library. This file comes after settle,
-- and wraps it.
local settle_at_once = settle
settle = function(lock, queue, counter, value, here)
    if not value and redis.call('EXISTS', queue .. '\31gap') == 1 then return 'gap', {} end
    local held, served = settle_at_once(lock, queue, counter, value, here)
    if held and not value then redis.pcall('SET', queue .. '\31turn', 1, 'PX', $turn) end
    if not held and redis.call('EXISTS', queue .. '\31gap') == 1 then return 'gap', served end
    return held, served
end
