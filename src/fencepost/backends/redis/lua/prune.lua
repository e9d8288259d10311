-- Remove the waiters whose process is gone.
-- KEYS: queue
-- Answers: how many there were.
-- needs: alive
local living, dead = {}, 0
for _, entry in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local channel = string.match(entry, '^[%d/]+:([^:]*):')
    if living[channel] == nil then living[channel] = alive(channel) end
    if not living[channel] then dead = dead + redis.call('ZREM', KEYS[1], entry) end
end
return dead
