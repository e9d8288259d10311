-- Forget the waiters whose process is gone.
-- KEYS: queue
-- Answers: how many there were.
local alive, dead = {}, 0
for _, entry in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local channel = string.match(entry, '^[%d/]+:([^:]*):')
    if alive[channel] == nil then alive[channel] = redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 end
    if not alive[channel] then dead = dead + redis.call('ZREM', KEYS[1], entry) end
end
return dead
